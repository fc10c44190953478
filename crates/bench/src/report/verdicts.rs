//! Bounds as people read them.

use super::columns::number;
use crate::bounds::{Judged, Verdict};
use crate::plan::Limit;

/// What a figure is worth at most.
const DECIMALS_MAX: usize = 9;

/// What has to be.
pub(super) fn limit(limit: Limit) -> String {
    let text = |value: f64| if value < 1e3 { value.to_string() } else { number(value) };
    match limit {
        Limit::AtLeast(least) => format!("at least {}", text(least)),
        Limit::AtMost(most) => format!("at most {}", text(most)),
    }
}

/// What was measured: as other figures are written, or with as many decimals as it takes to see
/// that a limit was missed.
pub(super) fn value(judged: &Judged) -> String {
    let Some(value) = judged.value else { return "–".to_owned() };
    let usual = number(value);
    let tells = |text: &str| !text.parse().is_ok_and(|rounded| judged.limit.holds(rounded));
    if judged.limit.holds(value) || tells(&usual.replace(',', "")) {
        return usual;
    }
    let mut longer = (1..=DECIMALS_MAX).map(|decimals| format!("{value:.decimals$}"));
    longer.find(|text| tells(text)).unwrap_or(usual)
}

/// What follows.
pub(super) fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed => "missed",
        Verdict::NotMeasured => "not measured",
    }
}

/// How all of them stand, in a sentence.
pub(super) fn sentence(bounds: &[Judged]) -> String {
    let count = |verdict| bounds.iter().filter(|judged| judged.verdict == verdict).count();
    let all = bounds.len();
    let missed = match count(Verdict::Missed) {
        0 => "None is missed".to_owned(),
        missed => format!("{missed} of {all} bounds missed"),
    };
    let met = count(Verdict::Met);
    match count(Verdict::NotMeasured) {
        0 => format!("{missed}, {met} met."),
        absent => format!("{missed}, {met} met, {absent} not measured."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(verdict: Verdict) -> Judged {
        let limit = Limit::AtLeast(1.0);
        Judged { text: String::new(), limit, value: None, verdict }
    }

    #[test]
    fn limits_and_values_are_written_for_people() {
        assert_eq!(limit(Limit::AtLeast(0.95)), "at least 0.95");
        assert_eq!(limit(Limit::AtMost(15443.0)), "at most 15,443");
        let value = |value| value_of(Some(value));
        assert_eq!((value(0.9496).as_str(), value(5599.4).as_str()), ("0.950", "5,599"));
        assert_eq!(value_of(None), "–");
    }

    #[test]
    fn a_value_is_as_long_as_its_verdict_needs() {
        let missed = |value, limit| {
            super::value(&Judged { value: Some(value), limit, ..judged(Verdict::Missed) })
        };
        assert_eq!(missed(0.999_61, Limit::AtLeast(1.0)), "0.9996");
        assert_eq!(missed(0.97, Limit::AtLeast(1.0)), "0.970");
        assert_eq!(missed(1.000_02, Limit::AtMost(1.0)), "1.00002");
        assert_eq!(missed(1154.7, Limit::AtLeast(1155.0)), "1154.7");
    }

    fn value_of(value: Option<f64>) -> String {
        super::value(&Judged { value, ..judged(Verdict::Met) })
    }

    #[test]
    fn a_missed_bound_is_told_first() {
        let [met, missed, absent] =
            [Verdict::Met, Verdict::Missed, Verdict::NotMeasured].map(judged);
        let all = [met.clone(), missed, absent.clone()];
        assert_eq!(sentence(&all), "1 of 3 bounds missed, 1 met, 1 not measured.");
        assert_eq!(sentence(&[met.clone(), met]), "None is missed, 2 met.");
        assert_eq!(sentence(&[absent]), "None is missed, 0 met, 1 not measured.");
    }
}
