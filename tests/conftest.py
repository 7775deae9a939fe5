"""What all tests need before they start."""

import signal

# A shell that starts the tests in the background lets them ignore Ctrl-C, and their children with them; some tests are
# about Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
