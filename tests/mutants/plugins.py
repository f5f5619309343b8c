"""Faults in finding drivers, in probing them, and in what errors and sizes say."""

from __future__ import annotations

HOST = "vmmcache/plugins/host.py"
REPORT = "vmmcache/probing/report.py"
PROCESS = "vmmcache/probing/process.py"
CHILD = "vmmcache/probing/child.py"
STEPS = "vmmcache/probing/steps.py"
ERRORS = "vmmcache/errors.py"
UNITS = "vmmcache/units.py"

MUTANTS = [
    {
        "name": "a broken plug-in kills the host",
        "path": HOST,
        "old": "except Exception as error:  # noqa: BLE001 -- a stranger's plug-in may",
        "new": "except ImportError as error:  # a stranger's plug-in may",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a broken plug-in disappears",
        "path": HOST,
        "old": '        return f"{type(error).__name__}: {error}"\n',
        "new": "        return []\n",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a misspelt hook goes unnoticed",
        "path": HOST,
        "old": "        manager.check_pending()\n",
        "new": "",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a stranger comes before us",
        "path": HOST,
        "old": "return entry.dist is None or entry.dist.name != OURS, entry.name, _origin(entry)",
        "new": "return entry.dist is not None and entry.dist.name == OURS, entry.name, _origin(entry)",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a clash displaces the first",
        "path": HOST,
        "old": "            result[_free_key(result, name, origin)] = record\n",
        "new": "            result[name] = record\n",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "two drivers of one name are both taken in",
        "path": HOST,
        "old": "elif (taken := origins.get(name)) is not None:",
        "new": "elif (taken := None) is not None:",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a disabled driver is found",
        "path": HOST,
        "old": "if name in disabled:",
        "new": "if False:",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a device is opened anew each time",
        "path": HOST,
        "old": "_opened.setdefault(key, find_driver(name).spec.open(index))",
        "new": "find_driver(name).spec.open(index)",
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "a driver that is not there is the host",
        "path": HOST,
        "old": "    record = known.get(name)\n",
        "new": '    record = known.get(name, known["host"])\n',
        "tests": ["tests/test_plugins.py"],
    },
    {
        "name": "the probe waits for ever",
        "path": PROCESS,
        "old": "self._process.wait(max(0.0, deadline - time.monotonic()))",
        "new": "self._process.wait(None)",
        "tests": ["tests/test_probing_strangers.py"],
    },
    {
        "name": "a probe that hangs is left running",
        "path": PROCESS,
        "old": "                os.killpg(self._process.pid, signal.SIGKILL)\n                self._process.wait()\n",
        "new": "",
        "tests": ["tests/test_probing_strangers.py"],
    },
    {
        "name": "a probe that crashes counts as an error of ours",
        "path": PROCESS,
        "old": "            if status < 0:\n",
        "new": "            if False:\n",
        "tests": ["tests/test_probing_strangers.py"],
    },
    {
        "name": "the host comes before an accelerator",
        "path": REPORT,
        "old": 'entry["name"] not in accelerators',
        "new": 'entry["name"] in accelerators',
        "tests": ["tests/test_probing.py"],
    },
    {
        "name": "what a vendor prints ends up in the answer",
        "path": CHILD,
        "old": "    os.dup2(2, 1)\n",
        "new": "",
        "tests": ["tests/test_probing_strangers.py"],
    },
    {
        "name": "the probe does not look at what it wrote",
        "path": STEPS,
        "old": "!= _PATTERN:",
        "new": '== b"":',
        "tests": ["tests/test_probing_steps.py"],
    },
    {
        "name": "the probe leaves its allocations behind",
        "path": STEPS,
        "old": "            stack.callback(self.driver.release, allocation)\n",
        "new": "",
        "tests": ["tests/test_probing_steps.py"],
    },
    {
        "name": "a device is usable though a needed step failed",
        "path": STEPS,
        "old": "if needed and not step.ok:",
        "new": "if False:",
        "tests": ["tests/test_probing_strangers.py"],
    },
    {
        "name": "an error loses its fields between processes",
        "path": ERRORS,
        "old": "    error.__dict__.update(fields)\n",
        "new": "",
        "tests": ["tests/test_errors.py"],
    },
    {
        "name": "a bool passes for a size",
        "path": UNITS,
        "old": "if isinstance(value, bool):",
        "new": "if False:",
        "tests": ["tests/test_units.py"],
    },
    {
        "name": "a float passes for a size",
        "path": UNITS,
        "old": "number = operator.index(value)",
        "new": "number = int(value)",
        "tests": ["tests/test_units.py"],
    },
]
