"""What of running the tests is pure, and that nothing hangs it: python3 -m unittest discover -s .ci"""

import importlib.machinery
import importlib.util
import pathlib
import time
import unittest

FILE = pathlib.Path(__file__).with_name("tests")
LOADER = importlib.machinery.SourceFileLoader("run_tests", str(FILE))
tests = importlib.util.module_from_spec(importlib.util.spec_from_loader("run_tests", LOADER))
LOADER.exec_module(tests)

PASSED = """
running 2 tests
test a::b ... ok
test c ... ignored, takes long

test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""

FAILED = """
test a::b ... ok
test a::c ... FAILED
test a::d - should panic ... FAILED

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
"""


def ran(*units, seconds=60):
    told = []
    tests.run_all(list(units), time.monotonic() + seconds, lambda unit, outcome: told.append((unit.label, outcome)))
    return dict(told)


def shell(label, script, **more):
    return tests.Unit(label, ["bash", "-c", script], pathlib.Path("/"), **more)


class Judged(unittest.TestCase):
    def test_what_passed_is_counted(self):
        outcome = tests.judged(PASSED, 0)
        self.assertEqual((outcome.fine, outcome.passed, outcome.failed, outcome.ignored), (True, 1, [], 1))

    def test_what_failed_is_named(self):
        outcome = tests.judged(FAILED, 101)
        self.assertEqual((outcome.fine, outcome.passed, outcome.failed), (False, 1, ["a::c", "a::d"]))

    def test_a_name_that_got_lost_leaves_no_names(self):
        outcome = tests.judged(FAILED.replace("... FAILED\n\n", "... noise FAILED\n\n"), 101)
        self.assertEqual((outcome.fine, outcome.failed), (False, []))

    def test_a_crash_is_no_success(self):
        self.assertFalse(tests.judged("running 2 tests\ntest a ... ", -6).fine)

    def test_python_is_understood(self):
        self.assertEqual(tests.judged("Ran 7 tests in 0.1s\n\nOK", 0).passed, 7)
        outcome = tests.judged("FAIL: test_x (a.B)\nRan 7 tests in 0.1s\n", 1)
        self.assertEqual((outcome.passed, outcome.failed), (6, ["test_x"]))


class Run(unittest.TestCase):
    def test_each_is_told_once(self):
        told = ran(*(shell(str(number), "true") for number in range(5)))
        self.assertEqual({label: outcome.fine for label, outcome in told.items()}, {str(number): True for number in range(5)})

    def test_what_hangs_is_ended(self):
        told = ran(shell("hangs", "sleep 1000 & wait", seconds_max=1))
        self.assertFalse(told["hangs"].fine)
        self.assertIn("not done after 1 s", told["hangs"].text)

    def test_what_a_test_leaves_behind_is_not_waited_for(self):
        since = time.monotonic()
        self.assertTrue(ran(shell("leaves", "setsid sleep 20 & true"))["leaves"].fine)
        self.assertLess(time.monotonic() - since, 15)

    def test_all_end_when_time_is_up(self):
        told = ran(*(shell(str(number), "sleep 1000") for number in range(tests.RUNNING_MAX + 3)), seconds=2)
        self.assertEqual(len(told), tests.RUNNING_MAX + 3)
        self.assertFalse(any(outcome.fine for outcome in told.values()))


class Again(unittest.TestCase):
    def test_a_test_is_run_again_and_a_program_by_the_tests_that_failed(self):
        outcome = tests.judged(FAILED, 101)
        outcome.seconds = 1.0
        unit = tests.alone("mounts", "/program", pathlib.Path("/"), "a::c", {})
        self.assertEqual(tests.again(unit, outcome), [unit])
        whole = tests.Unit("layout (lib)", ["/program"], pathlib.Path("/"), whole=True)
        self.assertEqual([unit.command for unit in tests.again(whole, outcome)],
                         [["/program", "--exact", "a::c"], ["/program", "--exact", "a::d"]])

    def test_what_named_nothing_or_never_began_has_failed(self):
        whole = tests.Unit("layout (lib)", ["/program"], pathlib.Path("/"), whole=True)
        self.assertEqual(tests.again(whole, tests.judged("", -6)), [])
        self.assertEqual(tests.again(tests.alone("m", "/p", pathlib.Path("/"), "a", {}), tests.judged("", 1)), [])

    def test_too_many_unsteady_tests_fail_all(self):
        tally = tests.Tally(0)
        tally.passed, tally.unsteady = 9, ["x"] * tests.UNSTEADY_MAX
        self.assertEqual(tally.end(), 0)
        tally.unsteady.append("y")
        self.assertEqual(tally.end(), 1)

    def test_nothing_run_is_no_success(self):
        self.assertEqual(tests.Tally(3).end(), 1)


class Idle(unittest.TestCase):
    def test_what_others_took_is_not_idle(self):
        self.assertEqual(tests.idle_part([0] * 8, [10, 0, 0, 30, 10, 0, 0, 50]), 0.4)

    def test_what_gives_way_is_idle(self):
        self.assertEqual(tests.idle_part([0] * 8, [10, 40, 10, 20, 0, 10, 10, 0]), 0.6)


class Order(unittest.TestCase):
    def test_what_computes_stands_among_what_waits(self):
        self.assertEqual(tests.interleaved([1, 2, 3, 4], ["a", "b"]), ["a", 1, 2, "b", 3, 4])
        self.assertEqual(tests.interleaved([1], ["a", "b"]), ["a", 1, "b"])
        self.assertEqual(tests.interleaved([], ["a"]), ["a"])


if __name__ == "__main__":
    unittest.main()
