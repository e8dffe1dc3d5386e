//! Aligned columns of at most a page's width, with or without colour.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};

use super::text::wrapped;

/// Columns of the page.
pub(super) const WIDTH: usize = 100;

/// Between two columns.
const GAP: usize = 2;

/// What a piece of text is, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Heading,
    Faint,
    Good,
    Bad,
    Warn,
}

impl Tone {
    fn style(self) -> Style {
        let color = |c: AnsiColor| Style::new().fg_color(Some(c.into()));
        match self {
            Self::Plain => Style::new(),
            Self::Heading => Style::new().bold(),
            Self::Faint => Style::new().dimmed(),
            Self::Good => color(AnsiColor::Green),
            Self::Bad => color(AnsiColor::Red).bold(),
            Self::Warn => color(AnsiColor::Yellow),
        }
    }
}

/// Writes `text` in its tone.
pub(super) fn paint(out: &mut impl Write, text: &str, tone: Tone, color: bool) -> io::Result<()> {
    if color && tone != Tone::Plain && !text.is_empty() {
        let style = tone.style();
        write!(out, "{style}{text}{style:#}")
    } else {
        out.write_all(text.as_bytes())
    }
}

/// Which side of its column a cell is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// One cell.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    text: String,
    tone: Tone,
}

impl Cell {
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self { text: text.into(), tone: Tone::Plain }
    }
}

/// A cell in its tone.
pub(super) fn cell(text: impl Into<String>, tone: Tone) -> Cell {
    Cell { text: text.into(), tone }
}

/// Rows of cells in columns.
#[derive(Debug)]
pub(super) struct Table {
    sides: Vec<Side>,
    heads: Option<Vec<String>>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty table with a column for each side.
    pub(super) fn new(sides: &[Side]) -> Self {
        Self { sides: sides.to_vec(), heads: None, rows: Vec::new() }
    }

    /// A table whose columns have heads.
    pub(super) fn headed(sides: &[Side], heads: &[&str]) -> Self {
        let heads = heads.iter().map(|head| (*head).to_owned());
        Self { heads: Some(heads.collect()), ..Self::new(sides) }
    }

    /// Adds a row; cells that it lacks stay empty.
    pub(super) fn row<const N: usize>(&mut self, cells: [Cell; N]) {
        self.cells(cells.into());
    }

    /// [`Table::row`] of a number of cells that is not known beforehand.
    pub(super) fn cells(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Writes the table, indented. A remark in the last column that does not fit the page stands in
    /// lines of its own below its row. Should a number be so long that the other columns do not
    /// fit, each cell gets a line of its own.
    pub(super) fn write(&self, out: &mut impl Write, color: bool) -> io::Result<()> {
        const INDENT: usize = 2;
        const BELOW: usize = 6;
        let heads: Option<Vec<Cell>> =
            self.heads.as_ref().map(|h| h.iter().map(|t| cell(t, Tone::Faint)).collect());
        let lines = || heads.iter().chain(&self.rows);
        let width =
            |column| lines().filter_map(|r| r.get(column).map(Cell::width)).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..self.sides.len()).map(width).collect();
        let gaps = INDENT + GAP * widths.len().saturating_sub(1);
        let total = gaps + widths.iter().sum::<usize>();
        let remarks = self.sides.len() > 1 && self.sides.ends_with(&[Side::Left]);
        if total > WIDTH {
            let last = widths.last_mut().filter(|last| remarks && total - **last < WIDTH);
            let Some(last) = last else {
                return self.write_list(out, color);
            };
            *last = WIDTH - (total - *last);
        }
        for row in lines() {
            let mut owed = INDENT;
            let mut below = None;
            for ((c, side), width) in row.iter().zip(&self.sides).zip(&widths) {
                if c.width() > *width {
                    below = Some(c);
                    continue;
                }
                let space = width - c.width();
                let (before, after) = match side {
                    Side::Left => (0, space),
                    Side::Right => (space, 0),
                };
                if !c.text.is_empty() {
                    write!(out, "{:1$}", "", owed + before)?;
                    paint(out, &c.text, c.tone, color)?;
                    owed = 0;
                } else {
                    owed += before;
                }
                owed += after + GAP;
            }
            writeln!(out)?;
            for line in below.iter().flat_map(|c| wrapped(&c.text, WIDTH - BELOW)) {
                write!(out, "{:BELOW$}", "")?;
                paint(out, &line, below.map_or(Tone::Plain, |c| c.tone), color)?;
                writeln!(out)?;
            }
        }
        Ok(())
    }

    fn write_list(&self, out: &mut impl Write, color: bool) -> io::Result<()> {
        for row in &self.rows {
            for (i, c) in row.iter().enumerate().filter(|(_, c)| !c.text.is_empty()) {
                let head = self.heads.as_ref().and_then(|h| h.get(i)).filter(|h| !h.is_empty());
                out.write_all(if i == 0 { b"  " } else { b"    " })?;
                if let Some(head) = head.filter(|_| i > 0) {
                    paint(out, &format!("{head} "), Tone::Faint, color)?;
                }
                paint(out, &c.text, c.tone, color)?;
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &Table, color: bool) -> String {
        let mut out = Vec::new();
        table.write(&mut out, color).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn columns_line_up_and_no_line_ends_in_spaces() {
        use Side::*;
        let mut t = Table::headed(&[Left, Right, Left], &["name", "n", ""]);
        t.row(["a".into(), "1,234".into(), "x".into()]);
        t.row(["longer".into(), "5".into()]);
        t.row(["".into(), "".into(), "note".into()]);
        let expected =
            "  name        n\n  a       1,234  x\n  longer      5\n                 note\n";
        assert_eq!(text(&t, false), expected);
    }

    #[test]
    fn colour_changes_no_place() {
        let mut t = Table::new(&[Side::Right, Side::Right]);
        t.row([cell("ab", Tone::Good), cell("c", Tone::Bad)]);
        assert_eq!(text(&t, true), "  \u{1b}[32mab\u{1b}[0m  \u{1b}[1m\u{1b}[31mc\u{1b}[0m\n");
    }

    #[test]
    fn a_remark_that_is_too_long_stands_below_its_row_and_the_table_stays_one() {
        let mut t = Table::new(&[Side::Left, Side::Right, Side::Left]);
        let long = format!("{} {}", "x".repeat(90), "y".repeat(9));
        t.row(["a".into(), "1,234".into(), long.into()]);
        t.row(["longer".into(), "5".into(), "note".into()]);
        let (x, y) = ("x".repeat(90), "y".repeat(9));
        let expected = format!("  a       1,234\n      {x}\n      {y}\n  longer      5  note\n");
        assert_eq!(text(&t, false), expected);
    }

    #[test]
    fn a_table_that_is_too_wide_becomes_a_list() {
        let mut t = Table::headed(&[Side::Left, Side::Right], &["name", "value"]);
        t.row(["a".into(), "9".repeat(95).into()]);
        assert_eq!(text(&t, false), format!("  a\n    value {}\n", "9".repeat(95)));
        let mut t = Table::new(&[Side::Left, Side::Right]);
        t.row(["a".into(), "9".repeat(96).into()]);
        assert_eq!(text(&t, false), format!("  a\n    {}\n", "9".repeat(96)));
    }
}
