//! Reads numbers and short words from a query string. Paths are parsed in `files/path.rs`.

use std::str::FromStr;

use crate::reply::Failure;

/// Returns None when absent or empty.
pub fn find<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(key, value)| *key == name && !value.is_empty()).map(|(_, value)| value).next()
}

pub fn parse<T: FromStr>(query: Option<&str>, name: &str) -> Result<Option<T>, Failure> {
    let value = find(query, name).map(str::parse).transpose();
    value.map_err(|_| Failure::invalid(format!("{name}: not a number in range")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_parsed_completely_or_rejected() {
        let query = Some("after=12&grace_ms=&scope=tree&port=70000");

        assert_eq!(parse::<u64>(query, "after").ok(), Some(Some(12)));
        assert_eq!(parse::<u64>(query, "grace_ms").ok(), Some(None));
        assert_eq!(find(query, "scope"), Some("tree"));
        assert!(parse::<u16>(query, "port").is_err());
        assert!(parse::<u64>(query, "scope").is_err());
        assert_eq!(find(None, "scope"), None);
    }
}
