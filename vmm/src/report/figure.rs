//! Numbers as the page shows them: exact and grouped, with a short form beside them where it helps.

/// `n` with thousands separators.
pub(super) fn grouped(n: impl Into<i128>) -> String {
    let n = n.into();
    let digits = n.unsigned_abs().to_string();
    let mut text = String::from(if n < 0 { "-" } else { "" });
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time, exact: `42,151,959 ns`.
pub(super) fn ns(n: impl Into<i128>) -> String {
    format!("{} ns", grouped(n))
}

/// A time, rounded to three decimals of the largest unit below it: `42.152 ms`. Below a
/// microsecond it is exact.
pub(super) fn human(n: impl Into<i128>) -> String {
    let n = n.into();
    let magnitude = n.unsigned_abs();
    if magnitude < 1_000 {
        return format!("{n} ns");
    }
    let sign = if n < 0 { "-" } else { "" };
    let thousandths =
        |size: u128| magnitude / size * 1_000 + (magnitude % size * 1_000 + size / 2) / size;
    let (unit, value) = [("us", 1_000), ("ms", 1_000_000)]
        .into_iter()
        .map(|(unit, size)| (unit, thousandths(size)))
        .find(|(_, value)| *value < 1_000_000)
        .unwrap_or_else(|| ("s", thousandths(1_000_000_000)));
    format!("{sign}{} {unit}", thousandth(value))
}

/// A time both ways: `42,151,959 ns (42.152 ms)`.
pub(super) fn both(n: impl Into<i128>) -> String {
    let n = n.into();
    if n.unsigned_abs() < 1_000 { ns(n) } else { format!("{} ({})", ns(n), human(n)) }
}

/// `n` thousandths: `1,234.567`.
pub(super) fn thousandth(n: u128) -> String {
    let whole = i128::try_from(n / 1_000).unwrap_or(i128::MAX);
    format!("{}.{:03}", grouped(whole), n % 1_000)
}

/// `part` of `whole` in percent to one decimal, or `-` of nothing.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".into();
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    let permille = (part * 1_000 + whole / 2) / whole;
    format!("{}.{}%", permille / 10, permille % 10)
}

/// `n things`, or `1 thing`.
pub(super) fn count(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_three_at_every_size() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (-1_234_567, "-1,234,567")];
        for (n, text) in cases {
            assert_eq!(grouped(n), text);
        }
        assert_eq!(grouped(u64::MAX), "18,446,744,073,709,551,615");
        assert_eq!(grouped(i64::MIN), "-9,223,372,036,854,775,808");
        assert_eq!(grouped(i128::MIN).len(), 40 + 12);
    }

    #[test]
    fn a_short_form_never_rounds_up_to_a_thousand_of_its_unit() {
        let cases: [(i128, &str); 10] = [
            (0, "0 ns"),
            (-999, "-999 ns"),
            (1_000, "1.000 us"),
            (999_999, "999.999 us"),
            (42_151_959, "42.152 ms"),
            (999_999_499, "999.999 ms"),
            (999_999_500, "1.000 s"),
            (-1_500_000_000, "-1.500 s"),
            (1 << 40, "1,099.512 s"),
            (i128::MAX, "170,141,183,460,469,231,731,687,303,715.884 s"),
        ];
        for (n, text) in cases {
            assert_eq!(human(n), text, "{n}");
        }
    }

    #[test]
    fn shares_round_to_a_tenth_of_a_percent_and_nothing_has_none() {
        assert_eq!(share(7_864_195, 17_229_311), "45.6%");
        assert_eq!(share(2_683_625, 9_041_817), "29.7%");
        assert_eq!(share(1, 1), "100.0%");
        assert_eq!(share(u64::MAX, u64::MAX), "100.0%");
        assert_eq!(share(0, 0), "-");
    }
}
