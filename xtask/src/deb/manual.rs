//! lunette.toml(5), generated from the page about the configuration file: as much of Markdown as that page
//! uses, in man(7)'s macros.

use std::fmt::Write as _;

/// The manual page.
pub(super) fn page(markdown: &str, version: &str) -> String {
    let mut page = format!(
        ".TH LUNETTE.TOML 5 \"\" \"Lunette {version}\" \"File Formats\"\n.SH NAME\nlunette.toml \\- configuration of the \
         Lunette storage target\n.SH DESCRIPTION\n"
    );
    let mut lines = markdown.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            page.push_str(".PP\n.RS 4\n.EX\n");
            for code in lines.by_ref().take_while(|line| !line.starts_with("```")) {
                page.push_str(&protected(&literal(code)));
            }
            page.push_str(".EE\n.RE\n");
        } else if let Some(title) = line.strip_prefix("## ") {
            let _ = writeln!(page, ".SH \"{}\"", inline(title).replace('"', "\\(dq"));
        } else if let Some(title) = line.strip_prefix("### ") {
            let _ = writeln!(page, ".SS \"{}\"", inline(title).replace('"', "\\(dq"));
        } else if let Some(row) = line.strip_prefix("| ") {
            // The line below a heading is not a row.
            if lines.next_if(|next| next.starts_with("|-")).is_none() {
                page.push_str(&definition(row));
            }
        } else if let Some(item) = line.strip_prefix("- ") {
            let _ = write!(page, ".IP \\(bu 2\n{}", protected(&inline(item)));
        } else if line.is_empty() {
            if lines.peek().is_some_and(|next| !next.is_empty() && !next.starts_with(['#', '|', '-', '`'])) {
                page.push_str(".PP\n");
            }
        } else if !line.starts_with("# ") {
            page.push_str(&protected(&inline(line.trim_start())));
        }
    }
    page
}

/// A row of a table: a key, its meaning, and possibly its default.
fn definition(row: &str) -> String {
    let mut cells = row.trim_end().trim_end_matches('|').split(" | ").map(|cell| inline(cell.trim()));
    let (key, meaning) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
    let mut text = format!(".TP\n{}{}", protected(&key), protected(&meaning));
    if let Some(default) = cells.next().filter(|default| !default.is_empty()) {
        text.push_str(&protected(&format!("Default: {default}.")));
    }
    text
}

/// Text with code in bold, and links as their text.
fn inline(text: &str) -> String {
    let mut shown = String::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            let _ = write!(shown, "\\fB{}\\fR", literal(part));
            continue;
        }
        let mut rest = part;
        // A link's text may be code, so that it begins in another part.
        while let Some((before, after)) = rest.split_once("](") {
            shown.push_str(&literal(&before.replace('[', "")));
            rest = after.split_once(')').map_or("", |(_, after)| after);
        }
        shown.push_str(&literal(&rest.replace(['['], "").replace("**", "")));
    }
    shown
}

/// Text with special characters escaped.
fn literal(text: &str) -> String {
    text.replace("\\|", "|").replace('\\', "\\e").replace('-', "\\-")
}

/// A line that is not mistaken for a request.
fn protected(line: &str) -> String {
    let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    format!("{guard}{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_what_the_text_has() {
        let text = "# The file\n\nIt is [TOML](https://toml.io).\n\n```toml\n[[lun]]\n.x = \"a\\\\b\"\n```\n\n## `[[lun]]`: disks\n\n\
                    | key | meaning | default |\n|---|---|---|\n| `size` | For `file`: see [below](#x). | none |\n\n- one\n  more\n";
        let page = page(text, "1.0");
        let body = page.split_once(".SH DESCRIPTION\n").expect("a description").1;
        assert_eq!(
            body,
            ".PP\nIt is TOML.\n.PP\n.RS 4\n.EX\n[[lun]]\n\\&.x = \"a\\e\\eb\"\n.EE\n.RE\n.SH \"\\fB[[lun]]\\fR: disks\"\n\
             .TP\n\\fBsize\\fR\nFor \\fBfile\\fR: see below.\nDefault: none.\n.IP \\(bu 2\none\nmore\n"
        );
    }
}
