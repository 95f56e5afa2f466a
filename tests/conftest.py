"""Property tests draw the same examples everywhere, and are not timed: machines are shared."""

import signal

from hypothesis import settings

settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")

# Started in the background of a script, this process and the programs it tests would ignore Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
