"""Jobs that are ended at random moments: what is left over must be nothing, or resumable."""

import os
import random
import re
import resource
import signal
import subprocess
import sys
import time

WAYS = ("KILL", "TERM", "INT", "HUP", "full disk")
STATUS = {"KILL": -9, "TERM": 143, "INT": 130, "HUP": 129, "full disk": 2}


def end_somewhere(command, way, rng, longest):
    """Start a command, end it within `longest` seconds; its exit status, and what it said.

    A full disk is a limit on the size of a file, which fails a write as a full one does.
    """
    limit = rng.randrange(100, 20_000) if way == "full disk" else resource.RLIM_INFINITY
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    if way != "full disk":
        time.sleep(rng.uniform(0.3, longest))
        process.send_signal(getattr(signal, f"SIG{way}"))
    said = process.communicate(timeout=120)[1]
    wait_until_gone(process.pid)
    return process.returncode, said


def wait_until_gone(group):
    """Fail unless every process of a group is gone within seconds."""
    for _ in range(100):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError(f"processes of the group {group} are still there after ten seconds")


def ended_and_resumed(command, out, *, times, longest, seed=0):
    """End a command `times` times in random ways and moments, then let it finish; what was said.

    Every end is one line on standard error behind the plain lines of progress, and no traceback.
    """
    rng, told = random.Random(seed), []
    for _ in range(times):
        way = rng.choice(WAYS)
        status, said = end_somewhere([*command, "--resume"], way, rng, longest)
        # A job may be over before its end comes, or before it can tell of it.
        assert status in (STATUS[way], 0, -getattr(signal, f"SIG{way}", 0)), (way, status, said)
        assert "Traceback" not in said, (way, said)
        told.append((way, status, said))
    done = subprocess.run(
        [sys.executable, "-m", *command, "--resume"],
        check=False,
        timeout=300,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0, (told, done.stderr)
    assert (out / "manifest.json").is_file()
    return told


def result_bytes(out):
    """All results but the manifest, and the report without its copy of it."""
    files = {path.name: path.read_bytes() for path in out.glob("[!.]*") if path.is_file()}
    del files["manifest.json"]
    report = files.pop("report.html").decode()
    return files | {"report": re.sub("<pre>.*</pre>", "", report, flags=re.DOTALL)}
