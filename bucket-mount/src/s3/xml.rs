//! Reads the XML answers of the proxy, which writes them anew: elements and text, without attributes and namespaces.

/// A tag or a text between two tags.
#[derive(Debug, PartialEq)]
pub enum Token<'a> {
    Open(&'a str),
    Close(&'a str),
    Text(&'a str),
}

pub struct Tokens<'a> {
    rest: &'a str,
    /// The closing half of an element like `<Key/>`.
    pending_close: Option<&'a str>,
}

pub fn tokens(text: &str) -> Tokens<'_> {
    Tokens { rest: text, pending_close: None }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(name) = self.pending_close.take() {
            return Some(Token::Close(name));
        }
        loop {
            let Some(after) = self.rest.strip_prefix('<') else {
                if self.rest.is_empty() {
                    return None;
                }
                let end = self.rest.find('<').unwrap_or(self.rest.len());
                let (text, rest) = self.rest.split_at(end);
                self.rest = rest;
                return Some(Token::Text(text));
            };
            let (tag, rest) = after.split_once('>')?;
            self.rest = rest;
            // The declaration at the start, and comments.
            if tag.starts_with(['?', '!']) {
                continue;
            }
            if let Some(name) = tag.strip_prefix('/') {
                return Some(Token::Close(name.trim()));
            }
            let name = tag.trim_end_matches('/').split_whitespace().next().unwrap_or_default();
            if tag.ends_with('/') {
                self.pending_close = Some(name);
            }
            return Some(Token::Open(name));
        }
    }
}

/// The text of the first element with this name.
pub fn find_text(text: &str, name: &str) -> Option<String> {
    let mut tokens = tokens(text);
    tokens.find(|token| *token == Token::Open(name))?;
    match tokens.next()? {
        Token::Text(text) => decode(text),
        Token::Close(_) => Some(String::new()),
        Token::Open(_) => None,
    }
}

/// Replaces the entities of XML. None: an unknown entity.
pub fn decode(text: &str) -> Option<String> {
    if !text.contains('&') {
        return Some(text.to_owned());
    }
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        decoded.push_str(before);
        let (entity, after) = after.split_once(';')?;
        decoded.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            number => {
                let number = number.strip_prefix('#')?;
                let code = match number.strip_prefix('x') {
                    Some(digits) => u32::from_str_radix(digits, 16).ok()?,
                    None => number.parse().ok()?,
                };
                char::from_u32(code)?
            }
        });
        rest = after;
    }
    decoded.push_str(rest);
    Some(decoded)
}

/// For text that is sent.
pub fn encode(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_text_and_empty_elements_are_found() {
        let text = "<?xml version=\"1.0\"?>\n<A><B>x &amp; y</B><C/><D></D></A>";

        let found: Vec<Token> = tokens(text).collect();

        assert_eq!(found.first(), Some(&Token::Text("\n")));
        assert_eq!(found.get(1), Some(&Token::Open("A")));
        assert_eq!(find_text(text, "B").as_deref(), Some("x & y"));
        assert_eq!(find_text(text, "C").as_deref(), Some(""));
        assert_eq!(find_text(text, "D").as_deref(), Some(""));
        assert_eq!(find_text(text, "E"), None);
    }

    #[test]
    fn entities_are_decoded_and_unknown_ones_refused() {
        assert_eq!(decode("&quot;a&#x41;&#66;&apos;").as_deref(), Some("\"aAB'"));
        assert_eq!(decode("&unknown;"), None);
        assert_eq!(decode("&amp"), None);
    }

    #[test]
    fn truncated_text_ends_the_tokens() {
        assert_eq!(tokens("<A><B").count(), 1);
    }
}
