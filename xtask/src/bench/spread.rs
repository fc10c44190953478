//! The middle of a few measurements, and how far they lie apart.

use serde::Serialize;

/// Median and ends of repeated measurements.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of at least one value; of an even number of values the median is the mean of the middle two.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Spread { median, min, max })
    }

    /// `median (min-max)` with so many decimals.
    pub(super) fn text(&self, decimals: usize) -> String {
        let Spread { median, min, max } = self;
        let [median, min, max] = [median, min, max].map(|value| number(*value, decimals));
        if min == max { median } else { format!("{median} ({min}–{max})") }
    }
}

/// A number with so many decimals and its thousands apart.
pub(super) fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{grouped}{point}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_of_the_sorted_values() {
        let spread = Spread::of([3.0, 1.0, 2.0]).expect("three values");
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0 });
        let spread = Spread::of([4.0, 1.0, 2.0, 3.0]).expect("four values");
        assert_eq!(spread, Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn thousands_stand_apart_and_equal_ends_are_left_out() {
        assert_eq!(number(1_234_567.891, 1), "1,234,567.9");
        assert_eq!(number(999.0, 0), "999");
        assert_eq!(number(-1234.0, 0), "-1,234");
        let spread = Spread::of([1.04, 1.0, 1.01]).expect("three values");
        assert_eq!(spread.text(2), "1.01 (1.00–1.04)");
        assert_eq!(spread.text(0), "1");
    }
}
