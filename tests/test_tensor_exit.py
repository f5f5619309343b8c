"""T8: the interpreter exits while views are alive, in every way that they can be: status 0, and nothing to say.

Importing torch takes longer than all of this together, so one process imports it, and each way is a fork of that one,
which then ends as any script does.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.helpers import PATIENCE_S

SERVER = """
import gc, json, os, sys, tempfile, threading
import torch
gc.collect()
gc.freeze()  # torch's own hundred thousand objects are not looked through at each exit; ours are, so they come after
import vmmcache
vmmcache.ExtensibleTensor, vmmcache.drivers()
start, ways = json.load(sys.stdin)
ends = {}
for name, code in ways.items():
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            break
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        ends[name] = status, output.read().decode()
else:
    print(json.dumps(ends))
    sys.exit()
del ways, ends
exec(start + code)
"""

START = """
tensor = vmmcache.ExtensibleTensor(1 << 30, segments=2)
tensor.commit(5 << 20)
view = tensor.segment_view(0, torch.float32)
"""

WAYS = {
    "the tensor alive": "",
    "many views, some of views, some in a cycle, one of addresses only": """
views = [tensor.segment_view(i % 2)[i:] for i in range(100)]
views += [views, tensor.view(torch.bfloat16), torch.nn.Parameter(view[:8])]
del view
""",
    "the tensor asleep": "tensor.release_physical(backup=True)",
    "the tensor closed": "del view; tensor.close()",
    "the tensor collected": "del tensor; gc.collect()",
    "the tensor collected, and the view in another module": "sys.view = view; del tensor, view; gc.collect()",
    "a view that autograd's graph holds": "loss = (view[:4].requires_grad_() ** 2).exp().sum(); del view",
    "a view that a numpy array holds": "array = view.numpy(); del view, tensor",
    # Through torch's interface for C: a tensor of which Python has never heard, deleted by the C library's own exit.
    "a view that C++ lets go of when Python is gone": """
import ctypes
import torch._C._aoti as aoti
torch_c = ctypes.CDLL(os.path.join(torch.__path__[0], "lib", "libtorch_cpu.so"))
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
handle = ctypes.c_void_p(get_pointer(aoti.unsafe_alloc_void_ptrs_from_tensors([view])[0], None))
late, one = ctypes.c_void_p(), (ctypes.c_int64 * 1)(1)
first = ctypes.c_int64(0)
assert torch_c.aoti_torch__reinterpret_tensor(handle, ctypes.c_int64(1), one, one, first, ctypes.byref(late)) == 0
assert torch_c.aoti_torch_delete_tensor_object(handle) == 0
delete = ctypes.cast(torch_c.aoti_torch_delete_tensor_object, ctypes.c_void_p)
assert ctypes.CDLL(None).__cxa_atexit(delete, late, None) == 0
del view, tensor
""",
    "a refused view whose error is kept": """
try:
    tensor.view(shape=(1 << 60,))
except vmmcache.ConfigError as error:
    kept = error
""",
    "a closed tensor's error kept": """
try:
    tensor.close()
except vmmcache.StateError as error:
    kept = error
""",
    "a daemon thread that holds a view": """
holding = threading.Event()
def hold(mine):
    holding.set()
    threading.Event().wait()
threading.Thread(target=hold, args=(view,), daemon=True).start()
holding.wait()
""",
    "a view made at exit": """
import atexit
atexit.register(lambda: globals().update(late=tensor.view()))
""",
    "a finaliser that was there first": """
import weakref
class Thing: pass
thing = Thing()
weakref.finalize(thing, lambda: view[0].item())
""",
    "a forked child that exits like its parent": """
child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    view[0] = 1
""",
    "a forked child that drops everything first": """
child = os.fork()
if child == 0:
    del view, tensor
    gc.collect()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
view[0] = 1
assert view[0].item() == 1
""",
    "a forked child that exits at once": """
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
view[0] = 1
""",
}


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[int, str]]:
    """Exit status and output of each way."""
    child = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning", "-c", SERVER],
        input=json.dumps((START, WAYS)),
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    found: dict[str, tuple[int, str]] = json.loads(child.stdout)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_the_interpreter_exits_quietly_with(ends: dict[str, tuple[int, str]], way: str) -> None:
    assert tuple(ends[way]) == (0, "")
