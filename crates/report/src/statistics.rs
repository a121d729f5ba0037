//! Mean, spread and confidence of a few repetitions.

/// Statistics over the repetitions of a figure.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary {
    /// Number of repetitions.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their median; with an even count, the lower of the middle two.
    pub median: f64,
    /// Sample standard deviation; 0 for a single one.
    pub deviation: f64,
    /// Half the width of the 95 % confidence interval of the mean (Student's t); `None`: unknown, from a
    /// single repetition.
    pub confidence: Option<f64>,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Summary {
    /// Over these figures; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let figures: Vec<f64> = figures.into_iter().filter(|figure| figure.is_finite()).collect();
        let count = figures.len();
        if count == 0 {
            return None;
        }
        let mean = figures.iter().sum::<f64>() / count as f64;
        let median = figures[median_index(&figures)?];
        let squares: f64 = figures.iter().map(|figure| (figure - mean).powi(2)).sum();
        let deviation = if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 };
        let confidence = (count > 1).then(|| student(count - 1) * deviation / (count as f64).sqrt());
        let min = figures.iter().copied().fold(f64::INFINITY, f64::min);
        let max = figures.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Summary { count, mean, median, deviation, confidence, min, max })
    }

    /// Both ends of the confidence interval; the mean itself if there is none.
    pub fn interval(&self) -> (f64, f64) {
        let half = self.confidence.unwrap_or(0.0);
        (self.mean - half, self.mean + half)
    }

    /// The same in another unit.
    pub(super) fn scaled(&self, factor: f64) -> Summary {
        Summary {
            count: self.count,
            mean: self.mean * factor,
            median: self.median * factor,
            deviation: self.deviation * factor,
            confidence: self.confidence.map(|half| half * factor),
            min: self.min * factor,
            max: self.max * factor,
        }
    }
}

/// The index of the median; with an even count, of the lower of the middle two.
pub(super) fn median_index(figures: &[f64]) -> Option<usize> {
    let mut order: Vec<usize> = (0..figures.len()).collect();
    order.sort_by(|&a, &b| figures[a].total_cmp(&figures[b]));
    order.get(figures.len().saturating_sub(1) / 2).copied()
}

/// Student's t for 95 %, two-sided, by degrees of freedom; between entries the previous one applies.
fn student(freedom: usize) -> f64 {
    const TABLE: [(usize, f64); 37] = [
        (1, 12.706),
        (2, 4.303),
        (3, 3.182),
        (4, 2.776),
        (5, 2.571),
        (6, 2.447),
        (7, 2.365),
        (8, 2.306),
        (9, 2.262),
        (10, 2.228),
        (11, 2.201),
        (12, 2.179),
        (13, 2.160),
        (14, 2.145),
        (15, 2.131),
        (16, 2.120),
        (17, 2.110),
        (18, 2.101),
        (19, 2.093),
        (20, 2.086),
        (21, 2.080),
        (22, 2.074),
        (23, 2.069),
        (24, 2.064),
        (25, 2.060),
        (26, 2.056),
        (27, 2.052),
        (28, 2.048),
        (29, 2.045),
        (30, 2.042),
        (35, 2.030),
        (40, 2.021),
        (50, 2.009),
        (60, 2.000),
        (70, 1.994),
        (80, 1.990),
        (90, 1.987),
    ];
    let entry = TABLE.iter().rev().find(|(at, _)| *at <= freedom);
    entry.map_or(f64::INFINITY, |(_, t)| *t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_students_t() {
        // Five figures with mean 10 and deviation sqrt(2.5): t(4) = 2.776.
        let summary = Summary::of([8.0, 9.0, 10.0, 11.0, 12.0]).unwrap();
        assert_eq!((summary.count, summary.mean, summary.min, summary.max), (5, 10.0, 8.0, 12.0));
        assert!((summary.deviation - 1.5811).abs() < 1e-4);
        assert!((summary.confidence.unwrap() - 1.9629).abs() < 1e-3);
        let (low, high) = summary.interval();
        assert!((low - 8.0371).abs() < 1e-3 && (high - 11.9629).abs() < 1e-3);
    }

    #[test]
    fn one_figure_has_no_interval_and_none_no_mean() {
        let one = Summary::of([3.0]).unwrap();
        assert_eq!((one.mean, one.confidence, one.interval()), (3.0, None, (3.0, 3.0)));
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN]), None);
    }

    #[test]
    fn the_table_falls_towards_the_normal_distribution() {
        let values: Vec<f64> = (1..200).map(student).collect();
        assert!(values.windows(2).all(|pair| pair[0] >= pair[1]));
        assert!(values[198] > 1.96 && values[198] < 1.99);
    }

    #[test]
    fn the_median_is_one_of_the_figures() {
        assert_eq!(median_index(&[3.0, 1.0, 2.0]), Some(2));
        assert_eq!(median_index(&[2.0, 1.0]), Some(1));
        assert_eq!(median_index(&[]), None);
    }
}
