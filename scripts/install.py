"""Runs a command with its words in a log file and a line of progress: python install.py LOG WHAT COMMAND...

It needs nothing but Python: it is what installs everything else.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

NAMED = re.compile(
    r"(Collecting|Downloading|Building wheel for|Installing collected packages)[: ]*([\w.\[\]-]*)"
)


def main(log, what, *command):
    """Shows the last package that was named, how many there were, and the seconds."""
    live, started, packages = sys.stdout.isatty(), time.monotonic(), 0
    print(f"== {what}; the details are in {log}", flush=True)
    with Path(log).open("w") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in process.stdout:
            file.write(line)
            if live and (match := NAMED.match(line.strip())):
                packages += match[1] == "Collecting"
                doing = "installing all of them" if "Installing" in match[1] else match[2]
                print(
                    f"\r   {time.monotonic() - started:4.0f} s  {packages} packages: {doing:<40.40}",
                    end="",
                    flush=True,
                )
    print(("\r" + " " * 72 + "\r") * live + f"   took {time.monotonic() - started:.0f} s", flush=True)
    if code := process.wait():
        print(*Path(log).read_text().splitlines()[-15:], f"failed; all of it is in {log}", sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
