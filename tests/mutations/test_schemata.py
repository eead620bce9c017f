"""That many mutations in one build are the mutations one by one. python3 -m unittest discover -s tests/mutations"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

import schemata

SOURCE = r'''
/* fn not_this() { /* nor this */ 1 } */
const LIMIT: u8 = 7;
struct Held { call: fn(u8) -> u8 }
fn plain<'a>(text: &'a str) -> usize { // { a brace }
    let brace = '{';
    if text.contains(brace) || text == "}\"{" || text == r#"}"{"# { return 1; }
    text.len()
}
fn made() -> impl Iterator<Item = u8> { [1, 2].into_iter() }
fn outer(held: [u8; 3]) -> u8 {
    fn inner(x: u8) -> u8 { x + 1 }
    inner(held[0]) * 2
}
fn main() {
    let held = Held { call: |x| x + LIMIT };
    println!("{} {} {} {}", plain("abc"), made().count(), outer([1, 2, 3]), (held.call)(1));
}
'''


def change(find, replace):
    return {"find": find, "replace": replace}


class Schemata(unittest.TestCase):
    def test_functions_are_found(self):
        ends = [SOURCE[: found.start].rstrip("{ ").rsplit("fn ", 1)[1].split("(")[0].split("<")[0] for found in schemata.functions(SOURCE)]
        self.assertEqual(ends, ["plain", "made", "inner", "outer", "main"])

    def test_what_cannot_be_chosen_at_run_time_is_left(self):
        changes = [(1, change("LIMIT: u8 = 7", "LIMIT: u8 = 8")), (2, change("[1, 2].into_iter()", "[1].into_iter()")), (3, change("x + 1", "x + 2")),
                   (4, change("* 2", "* 3"))]
        self.assertEqual(schemata.together(SOURCE, changes)[1], {1, 2, 4})

    def test_each_runs_when_it_is_chosen_and_none_otherwise(self):
        changes = [(1, change("return 1;", "return 2;")), (1, change("text.len()", "text.len() + 40")), (2, change("text.len()", "50")), (3, change("(held.call)(1)", "9"))]
        text, left = schemata.together(SOURCE, changes)
        self.assertEqual(left, set())
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "it.rs").write_text(text)
            subprocess.run(["rustc", "--edition", "2024", "-A", "warnings", "-o", folder / "it", folder / "it.rs"], check=True)
            said = [subprocess.run([folder / "it"], env={schemata.VARIABLE: at} if at else {}, capture_output=True, text=True, check=True).stdout.strip()
                    for at in ("", "1", "2", "3", "4")]
        self.assertEqual(said, ["3 2 4 8", "43 2 4 8", "50 2 4 8", "3 2 4 9", "3 2 4 8"])

    def test_a_line_tells_whose_body_it_is(self):
        text, _ = schemata.together(SOURCE, [(5, change("text.len()", "wrong")), (6, change("return 1;", "return 2;"))])
        line = text[: text.index("wrong")].count("\n") + 1
        self.assertEqual(schemata.of_lines(text, [line]), {5})


if __name__ == "__main__":
    unittest.main()
