"""Its library starts a service that lives on and keeps the pipes, and then hangs."""

import os
import subprocess
import sys
import threading

from vmmcache import DriverSpec, hookimpl

# Ends when somebody has opened the other end of a named pipe and closed it again.
_SERVICE = "import sys; open(sys.argv[1]).read()"


def _survey():
    subprocess.Popen([sys.executable, "-I", "-S", "-c", _SERVICE, os.environ["ACME_SERVICE"]], start_new_session=True)
    threading.Event().wait()


@hookimpl
def vmmcache_drivers():
    yield DriverSpec("leaving", open=print, survey=_survey)
