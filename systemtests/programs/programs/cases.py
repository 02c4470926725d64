"""Runs a test module of CPython's case by case, and journals how each ends.

usage: cases.py MODULE JOURNAL ONLY-FILE DONE-FILE

ONLY-FILE has parts of names, one of which a case must contain (an empty file: any); DONE-FILE has
the names of cases that are left out. The journal gets lines of words separated by tabs: "start
CASE", "end CASE OUTCOME DETAIL", and "done" after the last one.
"""

import os
import sys
import unittest

# All but gigabytes of disk, a screen and servers of the Internet; of what needs another host all the
# same, each case fails plainly, too.
RESOURCES = ["cpu", "decimal", "network", "subprocess", "tzdata"]


class Journal(unittest.TestResult):
    """Appends a line for each step, and keeps no file open that a case might count."""

    def __init__(self, path, prefix):
        super().__init__()
        self.path, self.prefix = path, prefix
        self.outcome, self.detail = None, ""

    def line(self, *words):
        words = [" ".join(word.split()) for word in words]
        with open(self.path, "a") as file:
            file.write("\t".join(words) + "\n")

    def name(self, test):
        name = test.id()
        if name.endswith(")"):
            # A fixture: "setUpClass (test.test_socket.SomeTest)".
            step, _, of = name[:-1].partition(" (")
            name = f"{of}.{step}"
        return name.removeprefix(self.prefix)

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.detail = "ok", ""
        self.line("start", self.name(test))

    def stopTest(self, test):
        super().stopTest(test)
        self.line("end", self.name(test), self.outcome, self.detail)
        self.outcome = None

    def note(self, test, outcome, detail):
        if self.outcome is None:
            self.line("end", self.name(test), outcome, detail)
        elif self.outcome in ("ok", "skipped"):
            self.outcome, self.detail = outcome, detail

    def addError(self, test, err):
        self.note(test, "error", text(err))

    def addFailure(self, test, err):
        self.note(test, "failed", text(err))

    def addSkip(self, test, reason):
        self.note(test, "skipped", reason)

    def addExpectedFailure(self, test, err):
        self.note(test, "expected-failure", text(err))

    def addUnexpectedSuccess(self, test):
        self.note(test, "failed", "unexpected success")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            kind = "failed" if issubclass(err[0], test.failureException) else "error"
            self.note(test, kind, text(err))


def text(err):
    return f"{err[0].__name__}: {err[1]}"[:200]


def chosen(suite, journal, only, done):
    """The same suite, with its nesting, of the cases that are to be run."""
    if not isinstance(suite, unittest.TestSuite):
        name = journal.name(suite)
        wanted = not only or any(part in name for part in only)
        return suite if wanted and name not in done else None
    parts = [chosen(part, journal, only, done) for part in suite]
    return type(suite)([part for part in parts if part is not None])


def lines(path):
    with open(path) as file:
        return [line.strip() for line in file if line.strip()]


def main():
    module, path, only, done = sys.argv[1:]
    sys.argv[1:] = []
    journal = Journal(path, module + ".")
    from test import support

    support.use_resources = RESOURCES
    try:
        loaded = unittest.defaultTestLoader.loadTestsFromName(module)
    except unittest.SkipTest as reason:
        journal.line("end", "(module)", "skipped", str(reason))
        loaded = unittest.TestSuite()
    # A case is let go as soon as it has ended, with all that it holds.
    loaded = chosen(loaded, journal, lines(only), set(lines(done)))
    loaded.run(journal)
    journal.line("done")


if __name__ == "__main__":
    # Libraries of the tests' own directory are found as under `python3 -m test`.
    sys.path[0] = os.getcwd()
    main()
