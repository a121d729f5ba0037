//! Maps figures to positions on an axis, and makes its ticks.

/// An axis from 0 to a round number.
pub(super) struct Linear {
    pub(super) step: f64,
    pub(super) top: f64,
}

impl Linear {
    /// An axis that includes all figures, in at most six steps of 1, 2 or 5 times a power of ten.
    pub(super) fn up_to(most: f64) -> Linear {
        let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
        let rough = most / 6.0;
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade(rough));
        let step = steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(rough);
        Linear { step, top: (most / step - 1e-6).ceil().max(1.0) * step }
    }

    /// Tick positions and labels: all in one unit, with as many decimals as the step needs.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        // 1000 is as short as 1.0k.
        let (factor, unit) = unit(self.top * 0.999);
        let decimals = (-(self.step / factor).log10() - 1e-9).ceil().max(0.0) as usize;
        let count = (self.top / self.step).round() as u32;
        let label = |tick: f64| match tick {
            0.0 => "0".to_string(),
            tick => format!("{:.decimals$}{unit}", tick / factor),
        };
        (0..=count).map(|tick| f64::from(tick) * self.step).map(|tick| (tick, label(tick))).collect()
    }

    /// The position of a figure, as a fraction of the axis.
    pub(super) fn place(&self, value: f64) -> f64 {
        (value / self.top).clamp(0.0, 1.0)
    }
}

/// A logarithmic axis: each step is ten times the previous one.
pub(super) struct Logarithmic {
    low: f64,
    high: f64,
}

impl Logarithmic {
    /// An axis that includes all figures above 0.
    pub(super) fn over(values: impl Iterator<Item = f64>) -> Logarithmic {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if low > high {
            (low, high) = (1.0, 10.0);
        }
        let low =
            [1.0, 2.0, 5.0].into_iter().map(|factor| factor * decade(low)).rfind(|tick| *tick <= low * 1.001);
        let top = decade(high);
        let high =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * top).find(|tick| *tick >= high * 0.999);
        let (low, high) = (low.unwrap_or(1.0), high.unwrap_or(10.0));
        Logarithmic { low, high: high.max(low * 5.0) }
    }

    /// 1, 2 and 5 in every decade; fewer when there are many decades.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let factors: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let mut ticks = Vec::new();
        let mut base = decade(self.low);
        while base <= self.high * 1.001 {
            ticks.extend(factors.iter().map(|factor| factor * base));
            base *= 10.0;
        }
        ticks.retain(|tick| *tick >= self.low * 0.999 && *tick <= self.high * 1.001);
        ticks
    }

    pub(super) fn place(&self, value: f64) -> f64 {
        let value = value.max(f64::MIN_POSITIVE);
        ((value / self.low).log10() / (self.high / self.low).log10()).clamp(0.0, 1.0)
    }
}

fn decade(value: f64) -> f64 {
    10f64.powf((value.log10() + 1e-9).floor())
}

/// `0`, `250`, `1.5k`, `20M`, `0.0042`: a figure short enough for an axis.
pub(crate) fn compact(value: f64) -> String {
    let (factor, unit) = unit(value.abs());
    let scaled = value / factor;
    let decimals = match scaled.abs() {
        small if small > 0.0 && small < 0.1 => (1.0 - small.log10().floor()).min(9.0) as usize,
        small if small < 10.0 => 2,
        medium if medium < 100.0 => 1,
        _ => 0,
    };
    let text = format!("{scaled:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

/// The unit for a figure of this size.
fn unit(size: f64) -> (f64, &'static str) {
    match size {
        _ if size >= 999_500_000.0 => (1e9, "G"),
        _ if size >= 999_500.0 => (1e6, "M"),
        _ if size >= 1000.0 => (1e3, "k"),
        _ => (1.0, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_end_on_round_numbers() {
        for (most, top, step) in [
            (97.0, 100.0, 20.0),
            (100.0, 100.0, 20.0),
            (1_234.0, 1500.0, 500.0),
            (0.8, 0.8, 0.2),
            (0.0, 1.0, 0.2),
        ] {
            let scale = Linear::up_to(most);
            assert!(
                (scale.top - top).abs() < 1e-9 && (scale.step - step).abs() < 1e-9,
                "{most}: {} by {}",
                scale.top,
                scale.step
            );
        }
        assert_eq!(Linear::up_to(f64::NAN).top, 1.0);
    }

    #[test]
    fn ticks_say_exactly_where_they_are() {
        let labels = |most: f64| -> Vec<String> {
            Linear::up_to(most).ticks().into_iter().map(|(_, label)| label).collect()
        };
        assert_eq!(labels(0.1), ["0", "0.02", "0.04", "0.06", "0.08", "0.10"]);
        assert_eq!(labels(0.024), ["0", "0.005", "0.010", "0.015", "0.020", "0.025"]);
        assert_eq!(labels(980.0), ["0", "200", "400", "600", "800", "1000"]);
        assert_eq!(labels(1.2e6), ["0", "0.2M", "0.4M", "0.6M", "0.8M", "1.0M", "1.2M"]);
        for most in (1..4000).map(|n| f64::from(n) * 0.0137) {
            let ticks = Linear::up_to(most).ticks();
            assert!((3..=7).contains(&ticks.len()), "{most}: {ticks:?}");
            assert!(ticks.last().is_some_and(|(top, _)| *top >= most * 0.998), "{most}: {ticks:?}");
            for (tick, label) in &ticks {
                let shown: f64 = match label.strip_suffix('k') {
                    Some(thousands) => thousands.parse::<f64>().unwrap() * 1e3,
                    None => label.parse().unwrap(),
                };
                assert!((shown - tick).abs() <= tick * 1e-9, "{most}: {ticks:?}");
            }
        }
    }

    #[test]
    fn logarithmic_axes_hold_every_figure() {
        let scale = Logarithmic::over([8.3, 95.0, 1200.0].into_iter());
        assert_eq!(scale.ticks(), [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0]);
        assert_eq!((scale.place(5.0), scale.place(2000.0)), (0.0, 1.0));
        assert_eq!(Logarithmic::over([0.4, 90_000.0].into_iter()).ticks().len(), 6);
        assert!(!Logarithmic::over(std::iter::empty()).ticks().is_empty());
        assert_eq!(Logarithmic::over([10.0].into_iter()).ticks(), [10.0, 20.0, 50.0]);
    }

    #[test]
    fn figures_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (0.004_23, "0.0042"),
            (12.5, "12.5"),
            (250.0, "250"),
            (1500.0, "1.5k"),
            (20e6, "20M"),
            (999_999.0, "1M"),
            (3.2e9, "3.2G"),
        ] {
            assert_eq!(compact(value), text);
        }
    }
}
