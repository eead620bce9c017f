//! Reads expressions. Types are checked on the way: numbers are compared, and what holds or does not is joined.

use super::{DEPTH_MAX, Expression, FIGURES_MAX, Figure, LENGTH_MAX, Node, Operator, Problem, STATISTICS, Statistic};
use crate::report::unit;

/// Stands for what `base` is of, until its comparison has been read.
const NOT_YET: usize = usize::MAX;

/// What a part of an expression is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Number,
    Truth,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::Number => "a number",
            Type::Truth => "a condition",
        }
    }
}

/// A part, with its type and where it began.
struct Part {
    node: Node,
    kind: Type,
    column: usize,
}

struct Parser {
    letters: Vec<char>,
    at: usize,
    depth: usize,
    figures: Vec<Figure>,
    /// Where a `base` stands that does not know yet what it is of.
    open_base: Option<usize>,
}

/// Reads an expression.
pub fn parse(text: &str) -> Result<Expression, Problem> {
    if text.len() > LENGTH_MAX {
        return Err(Problem { column: 1, what: format!("an expression has at most {LENGTH_MAX} bytes") });
    }
    let letters = text.chars().collect();
    let mut parser = Parser { letters, at: 0, depth: 0, figures: Vec::new(), open_base: None };
    let part = parser.any()?;
    parser.skip();
    if parser.at < parser.letters.len() {
        let found = parser.found();
        return Err(
            parser.problem(format!("{found} does not belong here: one of < <= > >= == != + - * / and or was expected"))
        );
    }
    parser.must_be(&part, Type::Truth, "a condition was expected, as read.median < 100, and this is a number")?;
    if parser.figures.is_empty() {
        return Err(Problem { column: 1, what: "it speaks of nothing that was measured, as read.median".to_owned() });
    }
    let mut conditions = Vec::new();
    split(part.node, &mut conditions);
    // `0 < 1 or ...` holds whatever was measured.
    for condition in &conditions {
        let mut figures = Vec::new();
        condition.figures(&mut figures);
        if figures.is_empty() {
            return Err(Problem { column: 1, what: "a part of it speaks of nothing that was measured".to_owned() });
        }
    }
    Ok(Expression { text: text.trim().to_owned(), conditions, figures: parser.figures })
}

/// What is joined by "or" at the top is judged by itself, each at its own points.
fn split(node: Node, found: &mut Vec<Node>) {
    match node {
        Node::Both { operator: Operator::Or, left, right, .. } => {
            split(*left, found);
            split(*right, found);
        }
        node => found.push(node),
    }
}

impl Parser {
    fn problem(&self, what: impl Into<String>) -> Problem {
        Problem { column: self.at + 1, what: what.into() }
    }

    fn skip(&mut self) {
        while self.letters.get(self.at).is_some_and(|letter| letter.is_whitespace()) {
            self.at += 1;
        }
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.letters.get(self.at + ahead).copied()
    }

    /// What stands here, for a message.
    fn found(&self) -> String {
        match self.peek(0) {
            None => "the end".to_owned(),
            Some(letter) if is_word(letter) => {
                let word: String =
                    self.letters[self.at..].iter().take_while(|letter| is_word(**letter)).take(40).collect();
                format!("'{word}'")
            }
            Some(letter) => format!("'{}'", crate::report::safe::plain(&letter.to_string())),
        }
    }

    /// Takes these letters, if they stand here.
    fn takes(&mut self, text: &str) -> bool {
        self.skip();
        let fits = text.chars().enumerate().all(|(ahead, letter)| self.peek(ahead) == Some(letter));
        let length = text.chars().count();
        let is_whole = !text.chars().all(is_word) || !self.peek(length).is_some_and(is_word);
        if fits && is_whole {
            self.at += length;
        }
        fits && is_whole
    }

    /// Takes the first of these that stands here, with its column.
    fn operator(&mut self, all: &[(&str, Operator)]) -> Option<(Operator, usize)> {
        self.skip();
        let column = self.at + 1;
        all.iter().find(|(text, _)| self.takes(text)).map(|(_, operator)| (*operator, column))
    }

    fn must_be(&self, part: &Part, kind: Type, what: &str) -> Result<(), Problem> {
        if part.kind == kind { Ok(()) } else { Err(Problem { column: part.column, what: what.to_owned() }) }
    }

    /// Notes that something begins within something else.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Parser) -> Result<T, Problem>) -> Result<T, Problem> {
        if self.depth >= DEPTH_MAX {
            return Err(self.problem(format!("more than {DEPTH_MAX} parts within each other")));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn joined(
        &mut self,
        left: Part,
        right: Part,
        (operator, column): (Operator, usize),
        kind: Type,
    ) -> Result<Part, Problem> {
        let (wanted, result) = match kind {
            Type::Truth => (Type::Truth, Type::Truth),
            Type::Number => (Type::Number, Type::Number),
        };
        for part in [&left, &right] {
            let what = format!(
                "'{}' stands between two of {}, and this is {}",
                operator.name(),
                wanted.name(),
                part.kind.name()
            );
            self.must_be(part, wanted, &what)?;
        }
        let start = left.column;
        Ok(Part { node: both(left.node, right.node, operator, column), kind: result, column: start })
    }

    fn any(&mut self) -> Result<Part, Problem> {
        self.row(&[("or", Operator::Or), ("||", Operator::Or)], Type::Truth, Parser::all)
    }

    fn all(&mut self) -> Result<Part, Problem> {
        self.row(&[("and", Operator::And), ("&&", Operator::And)], Type::Truth, Parser::negated)
    }

    fn sum(&mut self) -> Result<Part, Problem> {
        self.row(&[("+", Operator::Plus), ("-", Operator::Minus)], Type::Number, Parser::product)
    }

    fn product(&mut self) -> Result<Part, Problem> {
        self.row(&[("*", Operator::Times), ("/", Operator::By)], Type::Number, Parser::signed)
    }

    /// One or more of a kind with operators between them, from the left.
    fn row(
        &mut self,
        operators: &[(&str, Operator)],
        kind: Type,
        each: fn(&mut Parser) -> Result<Part, Problem>,
    ) -> Result<Part, Problem> {
        let mut left = each(self)?;
        let mut count = 0;
        while let Some(operator) = self.operator(operators) {
            // A long row is a deep tree.
            count += 1;
            if count > DEPTH_MAX {
                return Err(self.problem(format!("more than {DEPTH_MAX} parts in a row")));
            }
            let right = each(self)?;
            left = self.joined(left, right, operator, kind)?;
        }
        Ok(left)
    }

    fn negated(&mut self) -> Result<Part, Problem> {
        self.skip();
        let column = self.at + 1;
        let is_not = self.takes("not") || (self.peek(1) != Some('=') && self.takes("!"));
        if !is_not {
            return self.compared();
        }
        let part = self.deeper(Parser::negated)?;
        self.must_be(&part, Type::Truth, "'not' stands before a condition, and this is a number")?;
        Ok(Part { node: Node::Not(Box::new(part.node)), kind: Type::Truth, column })
    }

    fn compared(&mut self) -> Result<Part, Problem> {
        // A comparison within parentheses has closed its own bases.
        let outer = self.open_base.take();
        let left = self.sum()?;
        let operators = [
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        let Some((operator, column)) = self.operator(&operators) else {
            if self.takes("=") {
                self.at -= 1;
                return Err(self.problem("'=' compares nothing: '==' was expected"));
            }
            // Within parentheses, a part of a comparison that goes on.
            self.open_base = self.open_base.or(outer);
            return Ok(left);
        };
        let right = self.sum()?;
        for part in [&left, &right] {
            let what = format!("'{}' compares numbers, and this is a condition", operator.name());
            self.must_be(part, Type::Number, &what)?;
        }
        let start = left.column;
        let mut node = both(left.node, right.node, operator, column);
        if let Some(at) = self.open_base.take() {
            self.close_base(&mut node, at)?;
        }
        self.open_base = outer;
        if let Some((again, column)) = self.operator(&operators) {
            let what =
                format!("a comparison compares two: '{}' is one too many; join two comparisons by 'and'", again.name());
            return Err(Problem { column, what });
        }
        Ok(Part { node, kind: Type::Truth, column: start })
    }

    /// Says to each `base` of a comparison what it is of: the only figure there.
    fn close_base(&self, node: &mut Node, at: usize) -> Result<(), Problem> {
        let mut figures = Vec::new();
        node.figures(&mut figures);
        figures.retain(|figure| *figure != NOT_YET && !self.figures[*figure].is_base);
        let [only] = figures.as_slice() else {
            let what = if figures.is_empty() {
                "'base' of what? There is no figure in this comparison, as read.median"
            } else {
                "'base' of what? There are several figures in this comparison: write base.OP.STATISTIC, as base.read.median"
            };
            return Err(Problem { column: at, what: what.to_owned() });
        };
        if self.figures[*only].statistic.is_of_ratio() {
            let what = "a ratio is one to the base already: compare it with a number";
            return Err(Problem { column: at, what: what.to_owned() });
        }
        fill(node, *only);
        Ok(())
    }

    fn signed(&mut self) -> Result<Part, Problem> {
        self.skip();
        let column = self.at + 1;
        if self.takes("-") {
            let part = self.deeper(Parser::signed)?;
            self.must_be(&part, Type::Number, "'-' stands before a number, and this is a condition")?;
            return Ok(Part { node: Node::Negative(Box::new(part.node)), kind: Type::Number, column });
        }
        if self.takes("(") {
            let part = self.deeper(Parser::any)?;
            if !self.takes(")") {
                let found = self.found();
                return Err(self.problem(format!("')' was expected, for the '(' of column {column}, and not {found}")));
            }
            return Ok(Part { column, ..part });
        }
        let node = match self.peek(0) {
            Some(letter) if letter.is_ascii_digit() || letter == '.' => self.number()?,
            Some('"' | '\'') => Node::Figure(self.figure(None, column)?),
            Some(letter) if is_word(letter) => {
                let word = self.word();
                if word == "base" { self.base(column)? } else { Node::Figure(self.figure(Some(word), column)?) }
            }
            _ => {
                let found = self.found();
                return Err(
                    self.problem(format!("a number, OP.STATISTIC, 'base' or '(' was expected, and not {found}"))
                );
            }
        };
        Ok(Part { node, kind: Type::Number, column })
    }

    fn word(&mut self) -> String {
        let word: String = self.letters[self.at..].iter().take_while(|letter| is_word(**letter)).collect();
        self.at += word.chars().count();
        word
    }

    fn number(&mut self) -> Result<Node, Problem> {
        let start = self.at;
        while let Some(letter) = self.peek(0) {
            let is_exponent = matches!(letter, 'e' | 'E')
                && self.peek(1).is_some_and(|next| {
                    next.is_ascii_digit()
                        || (matches!(next, '-' | '+') && self.peek(2).is_some_and(|next| next.is_ascii_digit()))
                });
            if is_exponent {
                self.at += 2;
            } else if letter.is_ascii_digit() || letter == '.' {
                self.at += 1;
            } else {
                break;
            }
        }
        let text: String = self.letters[start..self.at].iter().collect();
        let value = text.parse::<f64>().ok().filter(|value| value.is_finite());
        let value = value.ok_or_else(|| Problem { column: start + 1, what: format!("'{text}' is no number") })?;
        if self.takes("%") {
            return Ok(Node::Number(value / 100.0, None));
        }
        self.skip();
        let unit = unit::names().into_iter().find(|unit| {
            let fits = unit.chars().enumerate().all(|(ahead, letter)| self.peek(ahead) == Some(letter));
            fits && !self.peek(unit.chars().count()).is_some_and(is_word)
        });
        if let Some(unit) = unit {
            self.at += unit.chars().count();
        } else if self.peek(0).is_some_and(is_word)
            && !["and", "or"].iter().any(|word| self.found() == format!("'{word}'"))
        {
            let found = self.found();
            return Err(self.problem(format!("{found} is no unit that is known: {}", unit::names().join(", "))));
        }
        Ok(Node::Number(value, unit))
    }

    /// What follows the word `base`.
    fn base(&mut self, column: usize) -> Result<Node, Problem> {
        if self.peek(0) != Some('.') {
            self.open_base.get_or_insert(column);
            return Ok(Node::Base { figure: NOT_YET, statistic: None });
        }
        self.at += 1;
        let start = self.at;
        if self.peek(0).is_some_and(is_word) {
            let word = self.word();
            if !matches!(self.peek(0), Some('.' | '[')) {
                let statistic = self.statistic(&word, start)?;
                self.open_base.get_or_insert(column);
                return Ok(Node::Base { figure: NOT_YET, statistic: Some(statistic) });
            }
            self.at = start;
        }
        let word = self.peek(0).is_some_and(is_word).then(|| self.word());
        let figure = self.figure(word, column)?;
        if self.figures[figure].statistic.is_of_ratio() {
            return Err(Problem { column, what: "a ratio is one to the base already".to_owned() });
        }
        self.figures[figure].is_base = true;
        Ok(Node::Figure(figure))
    }

    fn statistic(&self, word: &str, at: usize) -> Result<Statistic, Problem> {
        Statistic::of_name(word).ok_or_else(|| {
            let known: Vec<_> = STATISTICS.iter().map(|(name, _)| *name).collect();
            let what = format!("'{word}' is no statistic: {} are", known.join(", "));
            Problem { column: at + 1, what }
        })
    }

    /// A figure, of which the operation has been read unless it is in quotation marks.
    fn figure(&mut self, op: Option<String>, column: usize) -> Result<usize, Problem> {
        let op = match op {
            Some(word) => (word != "any").then_some(word),
            None => Some(self.quoted()?),
        };
        let mut filters = Vec::new();
        if self.peek(0) == Some('[') {
            self.at += 1;
            loop {
                filters.push(self.filter()?);
                if self.takes("]") {
                    break;
                }
                if !self.takes(",") {
                    let found = self.found();
                    return Err(self.problem(format!("',' or ']' was expected, and not {found}")));
                }
            }
        }
        if !self.takes(".") {
            let found = self.found();
            return Err(self.problem(format!("'.' and a statistic were expected, as in read.median, and not {found}")));
        }
        let start = self.at;
        let word = self.word();
        let statistic = self.statistic(&word, start)?;
        if self.figures.len() >= FIGURES_MAX {
            return Err(Problem { column, what: format!("an expression has at most {FIGURES_MAX} figures") });
        }
        let text = self.letters[column - 1..self.at].iter().collect();
        let figure = Figure { op, filters, statistic, is_base: false, text };
        let known = self.figures.iter().position(|other| *other == figure);
        Ok(known.unwrap_or_else(|| {
            self.figures.push(figure);
            self.figures.len() - 1
        }))
    }

    fn quoted(&mut self) -> Result<String, Problem> {
        let start = self.at;
        let Some(mark @ ('"' | '\'')) = self.peek(0) else {
            let found = self.found();
            return Err(self.problem(format!("an operation was expected, as read, and not {found}")));
        };
        let rest = &self.letters[start + 1..];
        let Some(length) = rest.iter().position(|letter| *letter == mark) else {
            return Err(self.problem(format!("the text that begins here has no {mark} at its end")));
        };
        self.at = start + length + 2;
        Ok(rest[..length].iter().collect())
    }

    fn filter(&mut self) -> Result<(String, String), Problem> {
        self.skip();
        let start = self.at;
        let raw = |parser: &mut Parser, ends: &[char]| -> String {
            let rest = parser.letters[parser.at..].iter();
            let text: String = rest.take_while(|letter| !ends.contains(letter)).collect();
            parser.at += text.chars().count();
            text.trim().to_owned()
        };
        let name = raw(self, &['=', ',', ']']);
        if name.is_empty() || self.peek(0) != Some('=') {
            self.at = start;
            return Err(self.problem("NAME=VALUE was expected, as in read[clients=4].median"));
        }
        self.at += 1;
        self.skip();
        let is_quoted = matches!(self.peek(0), Some('"' | '\''));
        let value = if is_quoted { self.quoted()? } else { raw(self, &[',', ']']) };
        if value.is_empty() {
            return Err(self.problem(format!("a value of {} was expected", crate::report::safe::plain(&name))));
        }
        Ok((name, value))
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn both(left: Node, right: Node, operator: Operator, column: usize) -> Node {
    Node::Both { operator, column, left: Box::new(left), right: Box::new(right) }
}

fn fill(node: &mut Node, only: usize) {
    match node {
        Node::Base { figure, .. } if *figure == NOT_YET => *figure = only,
        Node::Base { .. } | Node::Number(..) | Node::Figure(_) => {}
        Node::Negative(inner) | Node::Not(inner) => fill(inner, only),
        Node::Both { left, right, .. } => {
            fill(left, only);
            fill(right, only);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn wrong(text: &str, column: usize, part: &str) {
        let problem = parse(text).unwrap_err();
        assert!(problem.column == column && problem.what.contains(part), "{text}: {problem:?}");
    }

    #[test]
    fn a_figure_is_compared_with_the_base() {
        let expression = parse("read.median < 0.9*base").unwrap();
        assert!(expression.needs_base());
        assert_eq!(expression.figures[0].text, "read.median");
        let Node::Both { operator: Operator::Less, right, .. } = &expression.conditions[0] else { panic!() };
        let Node::Both { operator: Operator::Times, right, .. } = &**right else { panic!() };
        assert_eq!(**right, Node::Base { figure: 0, statistic: None });
    }

    #[test]
    fn products_bind_before_sums_and_both_before_comparisons() {
        let expression = parse("read.mean - 2*read.stdev < 100 MiB/s and not write.n < 5 or any.cv > 10 %").unwrap();
        assert_eq!(expression.conditions.len(), 2);
        assert_eq!(expression.figures.len(), 4);
        assert!(!expression.needs_base());
        let Node::Both { operator: Operator::And, left, .. } = &expression.conditions[0] else { panic!() };
        let Node::Both { operator: Operator::Less, left, right, .. } = &**left else { panic!() };
        assert_eq!(**right, Node::Number(100.0, Some("MiB/s")));
        assert!(matches!(**left, Node::Both { operator: Operator::Minus, .. }));
        let Node::Both { right, .. } = &expression.conditions[1] else { panic!() };
        assert_eq!(**right, Node::Number(0.1, None));
    }

    #[test]
    fn filters_choose_points() {
        let expression = parse("\"random-read\"[clients = 4, transfer=1 MiB, system='a,b'].max >= 1e3").unwrap();
        let filters = [("clients", "4"), ("transfer", "1 MiB"), ("system", "a,b")];
        assert_eq!(expression.figures[0].filters, filters.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(expression.figures[0].op.as_deref(), Some("random-read"));
    }

    #[test]
    fn a_base_may_be_of_another_statistic_or_figure() {
        let expression =
            parse("read.median < base.q1 or read.mean + write.mean < base.read.mean + base.write[clients=1].mean")
                .unwrap();
        assert_eq!(expression.figures.iter().filter(|figure| figure.is_base).count(), 2);
        assert!(parse("(read.median - base)/base < -10 %").unwrap().needs_base());
        assert!(parse("read.ratio_high < 0.95").unwrap().needs_base());
    }

    #[test]
    fn problems_point_at_their_column() {
        wrong("read.median < < 3", 15, "'<'");
        wrong("read.medain < 3", 6, "'medain' is no statistic");
        wrong("read.median", 1, "a condition was expected");
        wrong("read.median < 3 and 4", 21, "two of a condition");
        wrong("read.median < 3 + (write.n > 2)", 19, "two of a number");
        wrong("read.median < 3 MiB", 17, "'MiB' is no unit");
        wrong("1 < base", 5, "no figure");
        wrong("read.mean + write.mean < base", 26, "several figures");
        wrong("read.median = 3", 13, "'=='");
        wrong("1 < read.mean < 3", 15, "one too many");
        wrong("(read.median < 3", 17, "column 1");
        wrong("read[clients].median < 3", 6, "NAME=VALUE");
        wrong("read[clients=4.median < 3", 26, "']'");
        wrong("read < 3", 6, "'.' and a statistic");
        wrong("\"read.median < 3", 1, "at its end");
        wrong("1 < 2", 1, "nothing that was measured");
        wrong("1 < 2 or read.n < 3", 1, "nothing that was measured");
        wrong("", 1, "the end");
        wrong("read.median < 3 )", 17, "does not belong");
        wrong("read.ratio < base", 14, "already");
        wrong("read.median < 1.2.3", 15, "no number");
    }

    #[test]
    fn a_mark_stands_below_the_column() {
        let text = "read.median < < 3";
        let shown = parse(text).unwrap_err().shown(text);
        let lines: Vec<_> = shown.lines().collect();
        assert_eq!(lines[1].chars().nth(10 + 14), Some('<'));
        assert_eq!(lines[2].find('^'), Some(10 + 14));
    }

    #[test]
    fn depth_has_an_end() {
        for text in ["(".repeat(2000), "-".repeat(2000), "not ".repeat(900), format!("read.n{} > 1", "+1".repeat(1500))]
        {
            let problem = parse(&text).unwrap_err();
            assert!(problem.what.contains("more than 64"), "{problem:?}");
        }
        assert!(parse(&"x".repeat(LENGTH_MAX + 1)).is_err());
    }

    proptest! {
        #[test]
        fn no_text_brings_it_down(text in ".{0,200}") {
            if let Err(problem) = parse(&text) {
                prop_assert!(problem.column >= 1 && problem.column <= text.chars().count() + 1);
                let _ = problem.shown(&text);
            }
        }

        #[test]
        fn no_order_of_words_brings_it_down(words in prop::collection::vec(prop::sample::select(vec![
            "read", ".", "median", "<", "<=", "==", "=", "!", "and", "or", "not", "base", "base.q1", "(", ")", "[", "]", "clients=4", ",",
            "0.9", "*", "/", "+", "-", "%", "MiB/s", "\"", "'", " ", "any", "ratio", "1e", "é", "\u{0}",
        ]), 0..30)) {
            let text = words.concat();
            if let Ok(expression) = parse(&text) {
                let mut figures = Vec::new();
                expression.conditions.iter().for_each(|condition| condition.figures(&mut figures));
                prop_assert!(figures.iter().all(|figure| *figure < expression.figures.len()), "{text}: {expression:?}");
            }
        }
    }
}
