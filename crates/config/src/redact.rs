//! Redaction of text that may contain URLs with secrets, however malformed.

use super::protocol::Protocol;

/// Options whose values are not secret.
const PUBLIC: [&str; 12] = [
    "header_digest",
    "data_digest",
    "crc",
    "imm",
    "chap",
    "initiator_name",
    "give_up_after",
    "secret_file",
    "target_secret_file",
    "socket",
    "tls-certificates",
    "tls-hostname",
];

/// A single word, such as an argument, without possible secrets of a URL: everything before the last `@` of a
/// host, and options not known to be harmless.
pub fn redact(word: &str) -> String {
    if !may_hold_secrets(word) {
        return word.to_owned();
    }
    let (head, options) = match word.split_once('?') {
        Some((head, options)) => (head, Some(options)),
        None => (word, None),
    };
    let (scheme, rest) = head.split_at(scheme_bytes(head));
    let place = match rest.rsplit_once('@') {
        Some((_, host)) => format!("...@{}", host.split(['&', '=']).next().unwrap_or_default()),
        None if rest.contains(['%', '&', '=']) => "...".to_owned(),
        None => rest.to_owned(),
    };
    let options = options.map(|options| {
        let shown = options.split('&').map(|option| if is_public(option) { option } else { "..." });
        format!("?{}", shown.collect::<Vec<_>>().join("&"))
    });
    format!("{scheme}{place}{}", options.unwrap_or_default())
}

/// The same for every word of a text, such as a command or a file.
pub fn redact_all(text: &str) -> String {
    let shown = text.split_inclusive(ends_word).map(|word| {
        let (word, end) = word.split_at(word.trim_end_matches(ends_word).len());
        redact(word) + end
    });
    shown.collect()
}

/// Whether it ends a word; no URL contains these characters.
pub(super) fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`')
}

/// Whether it may be intended as a URL, or as the part of one that holds secrets.
fn may_hold_secrets(word: &str) -> bool {
    let has_user = word.rsplit_once('@').is_some_and(|(user, _)| user.contains('%'));
    has_user || word.contains("://") || word.contains("password=") || Protocol::is_meant(word)
}

fn is_public(option: &str) -> bool {
    option
        .split_once('=')
        .is_some_and(|(key, value)| PUBLIC.contains(&key) && !value.contains(['=', '@', '%', '?']))
}

/// Length of what looks like a scheme at the beginning of a text.
fn scheme_bytes(text: &str) -> usize {
    let letters = text.bytes().take_while(u8::is_ascii_lowercase).count();
    let is_short = letters <= "iscsi".len();
    match text.get(letters..) {
        Some(rest) if is_short && rest.starts_with("://") => letters + 3,
        Some(rest) if is_short && rest.starts_with(':') => letters + 1,
        Some(_) | None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Url;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hosts_units_and_harmless_options_are_shown() {
        for (text, shown) in [
            (
                "iscsi://me%a\\,b@h:860/iqn.x:y/3?data_digest=crc32c,ro",
                "iscsi://...@h:860/iqn.x:y/3?data_digest=crc32c,ro",
            ),
            ("iscsi://h/iqn.x:y/0?target_user=a&target_password=b", "iscsi://h/iqn.x:y/0?...&..."),
            ("iscsi:/me%se/cret@h/iqn.x:y", "iscsi:...@h/iqn.x:y"),
            ("me%secret@h", "...@h"),
            ("iscsi://[fe80::1]:3260/iqn.x:y/0", "iscsi://[fe80::1]:3260/iqn.x:y/0"),
            ("file:/srv/a@b,ro", "file:/srv/a@b,ro"),
            ("ram:1G", "ram:1G"),
        ] {
            assert_eq!(redact(text), shown);
        }
        let commands = "report --peer 'iscsi://u%s@h/i/0' --peer iser://h/i/1?target_password=s\n# a 'word'";
        assert_eq!(
            redact_all(commands),
            "report --peer 'iscsi://...@h/i/0' --peer iser://h/i/1?...\n# a 'word'"
        );
    }

    /// Otherwise what follows the space or the quotation mark would be shown with the command that contains
    /// it.
    #[test]
    fn no_url_has_what_ends_a_word() {
        for (end, written) in [(' ', "%20"), ('\t', "%09"), ('"', "%22"), ('\'', "%27"), ('`', "%60")] {
            let text = format!("iscsi://me%my{end}{SECRET}@h/iqn.x:y/0");
            let error = text.parse::<Url>().expect_err("no URL").to_string();
            assert!(error.contains(written) && !error.contains(SECRET), "{error}");
            assert_eq!(redact(&text), "iscsi://...@h/iqn.x:y/0");
            let url = text.replace(end, written).parse::<Url>().expect("a URL");
            assert_eq!(url.user.expect("a user").secret, format!("my{end}{SECRET}").into_bytes());
        }
    }

    const SECRET: &str = "Geheimnis";

    /// A valid URL with secrets, with one character removed, inserted or changed outside of them.
    fn mangled() -> impl Strategy<Value = String> {
        let good = format!(
            "iscsi://me%{SECRET}@host:3260/iqn.2026-11.io.lunette:d/0?data_digest=none&target_user=it&target_password={SECRET}"
        );
        let special = "/?&%@:[]=,;#\\\"'` .aZ0";
        let chars: Vec<char> = special.chars().collect();
        (0..good.len(), 0..3, proptest::sample::select(chars)).prop_map(move |(at, how, put)| {
            let is_inside =
                good.match_indices(SECRET).any(|(start, _)| (start + 1..start + SECRET.len()).contains(&at));
            let at = if is_inside { 0 } else { at };
            let is_first = good.match_indices(SECRET).any(|(start, _)| start == at);
            let (before, after) = good.split_at(at);
            match how {
                0 => format!("{before}{put}{after}"),
                1 if !is_first => format!("{before}{put}{}", &after[1..]),
                _ if !is_first => format!("{before}{}", &after[1..]),
                _ => good.clone(),
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_malformed_url_shows_its_secrets(text in mangled()) {
            let text = text.as_str();
            prop_assert!(!redact(text).contains(SECRET), "{text}: {}", redact(text));
            let is_url = text.parse::<Url>().is_ok();
            prop_assert!(!redact_all(text).contains(SECRET) || !is_url && text.contains(ends_word), "{text}");
            match text.parse::<Url>() {
                Ok(url) => prop_assert!(!url.to_string().contains(SECRET), "{text}: {url}"),
                Err(error) => prop_assert!(!error.to_string().contains(SECRET), "{text}: {error}"),
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,60}") {
            redact_all(&text);
        }
    }
}
