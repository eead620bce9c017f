//! Text from data, made harmless where it is shown: records come from other machines and may hold anything.

/// The longest name or value that is shown whole; longer ones end in an ellipsis.
const SHOWN_MAX: usize = 200;

/// Is invisible, or changes what stands around it: control characters, and those that reverse the direction of writing or join lines.
fn is_unsafe(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff0}'..='\u{ffff}')
}

/// For a terminal: one line, without anything that a terminal obeys.
pub fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len().min(4 * SHOWN_MAX));
    for (at, letter) in text.chars().enumerate() {
        if at >= SHOWN_MAX {
            out.push('…');
            break;
        }
        out.push(if is_unsafe(letter) { '\u{fffd}' } else { letter });
    }
    out
}

/// The same for several lines, which stay lines; as long as it may be.
pub fn plain_lines(text: &str) -> String {
    text.chars().map(|letter| if letter != '\n' && is_unsafe(letter) { '\u{fffd}' } else { letter }).collect()
}

/// For XML and HTML, in text and in quoted attributes.
pub fn xml(text: &str) -> String {
    escaped(&plain(text))
}

/// [`plain_lines`] for XML and HTML.
pub fn xml_lines(text: &str) -> String {
    escaped(&plain_lines(text))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

/// A file's name made of it: letters, digits and '-' only, and never empty.
pub fn file_name(text: &str) -> String {
    let mut name = String::new();
    for letter in text.chars().take(SHOWN_MAX / 2) {
        if letter.is_ascii_alphanumeric() {
            name.push(letter.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    let name = name.trim_end_matches('-');
    if name.is_empty() { "chart".to_owned() } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_terminal_obeys_nothing() {
        assert_eq!(plain("a\x1b[31mb\r\n\u{202e}c\u{9b}"), "a\u{fffd}[31mb\u{fffd}\u{fffd}\u{fffd}c\u{fffd}");
        assert_eq!(plain(&"x".repeat(1000)).chars().count(), SHOWN_MAX + 1);
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(xml("<script>&\"'"), "&lt;script&gt;&amp;&quot;&#39;");
    }

    #[test]
    fn files_have_harmless_names() {
        assert_eq!(file_name("../../etc/passwd: read"), "etc-passwd-read");
        assert_eq!(file_name("/.."), "chart");
    }

    proptest! {
        #[test]
        fn any_text_stands_in_xml(text in ".*") {
            let whole = format!("<a b=\"{}\">{}</a>", xml(&text), xml_lines(&text));
            prop_assert!(roxmltree::Document::parse(&whole).is_ok(), "{whole}");
        }
    }
}
