//! Options and commands with names in braces that stand for values.

use std::collections::BTreeMap;

/// Names and what they stand for.
pub type Names = BTreeMap<String, String>;

/// The text with each `{name}` replaced; `{{` and `}}` are braces. A name that is not known is an error, or is left as it is for whoever reads the text next.
pub fn fill(text: &str, names: &Names, leave_unknown: bool) -> Result<String, String> {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with("{{") || rest.starts_with("}}") {
            filled.push_str(&rest[..1]);
            rest = &rest[2..];
            continue;
        }
        let name = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')).map(|(name, _)| name);
        let known = name.and_then(|name| names.get(name));
        match (name, known) {
            (Some(name), Some(value)) => {
                filled.push_str(value);
                rest = &rest[name.len() + 2..];
            }
            (Some(name), None) if !leave_unknown => {
                let all: Vec<&str> = names.keys().map(String::as_str).collect();
                return Err(format!("{{{name}}} stands for nothing; there are {}", all.join(", ")));
            }
            _ if leave_unknown => {
                filled.push_str(&rest[..1]);
                rest = &rest[1..];
            }
            _ => return Err(format!("a brace stands alone in \"{text}\": write it twice if it is meant")),
        }
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Options as a shell splits them.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    shlex::split(text).ok_or_else(|| format!("a quotation mark stands alone in \"{text}\""))
}

/// A product of sizes and numbers, `1m * 16`, in bytes.
pub fn product(text: &str) -> Result<u64, String> {
    text.split('*').try_fold(1u64, |product, factor| {
        let factor = super::value::size(factor).ok_or_else(|| format!("{} is no size", factor.trim()))?;
        product.checked_mul(factor).ok_or_else(|| format!("{text} is more than can be counted"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        [("transfer", "64k"), ("dir", "/mnt/a b")].map(|(name, value)| (name.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn names_are_replaced() {
        assert_eq!(fill("-t {transfer} -o '{dir}/x'", &names(), false).unwrap(), "-t 64k -o '/mnt/a b/x'");
        assert_eq!(fill("awk '{{print}}'", &names(), false).unwrap(), "awk '{print}'");
        assert_eq!(fill("", &names(), false).unwrap(), "");
    }

    #[test]
    fn unknown_names_are_errors_or_left() {
        assert!(fill("{block}", &names(), false).unwrap_err().contains("dir, transfer"));
        assert_eq!(fill("c{rank} {transfer} {", &names(), true).unwrap(), "c{rank} 64k {");
        assert!(fill("{transfer", &names(), false).is_err() && fill("}", &names(), false).is_err());
    }

    #[test]
    fn values_are_not_replaced_again() {
        let names = [("a".to_owned(), "{b}".to_owned()), ("b".to_owned(), "no".to_owned())].into();
        assert_eq!(fill("{a}", &names, false).unwrap(), "{b}");
    }

    #[test]
    fn bytes_are_products() {
        assert_eq!(product("1m * 16"), Ok(16 << 20));
        assert_eq!(product("64k"), Ok(65536));
        assert!(product("x * 2").is_err() && product("").is_err() && product("1024t * 1024t").is_err());
    }

    #[test]
    fn options_split_as_in_a_shell() {
        assert_eq!(split("-o '/a b/c' -k").unwrap(), ["-o", "/a b/c", "-k"]);
        assert!(split("'x").is_err());
    }
}
