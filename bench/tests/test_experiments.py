"""What of the experiments' programs is pure. python3 -m unittest discover -s bench/tests"""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import sys
import unittest

EXPERIMENTS = pathlib.Path(__file__).resolve().parents[2] / "experiments"
sys.dont_write_bytecode = True


def loaded(path):
    """A program as a module: none of them has an ending."""
    loader = importlib.machinery.SourceFileLoader(path.name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(path.name, loader))
    loader.exec_module(module)
    return module


class Routers(unittest.TestCase):
    def setUp(self):
        self.load = loaded(EXPERIMENTS / "router" / "load")

    def told(self, *texts):
        """op -> value, of clients that said this and began at 100 s."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.load.report(texts, 100.0, 1.0, "kill")
        return {line["op"]: line["value"] for line in map(json.loads, said.getvalue().splitlines())}

    def test_a_client_without_figures_ends_the_run(self):
        self.load.check({"c0": (0, "100.1 1048576\n")})
        for code, text in ((1, "100.1 1048576\n"), (0, "\n"), (-9, "")):
            with self.assertRaisesRegex(SystemExit, "c1"):
                self.load.check({"c0": (0, "100.1 1048576\n"), "c1": (code, text)})

    def test_a_stall_may_be_at_the_beginning_or_the_end(self):
        self.assertAlmostEqual(self.told("100.1 1000\n100.2 1000\n100.5 1000")["longest stall"], 300)
        self.assertAlmostEqual(self.told("102.0 1000\n102.1 1000")["longest stall"], 2000)
        # It was refused for the rest of the time.
        told = self.told("100.1 1000\n100.2 -5\n103.1 -5", "100.1 1000\n103.0 1000")
        self.assertAlmostEqual(told["longest stall"], 3000)
        self.assertEqual(told["failed reads"], 2)
        # The time in which it was refused counts.
        self.assertAlmostEqual(told["read"], 3000 / 1e6 / 3.1)


if __name__ == "__main__":
    unittest.main()
