//! Weights by distance, on a scale that is exact for small ones and logarithmic beyond.

/// Steps of a doubling: a distance is known to 1/128 of itself.
const STEPS_BITS: u32 = 7;
const STEPS: u64 = 1 << STEPS_BITS;

/// Weights by distance.
#[derive(Default)]
pub(crate) struct Histogram {
    weights: Vec<f64>,
}

impl Histogram {
    /// Adds `weight` at a distance.
    pub(crate) fn add(&mut self, distance: u64, weight: f64) {
        let step = step_of(distance);
        if step >= self.weights.len() {
            self.weights.resize(step + 1, 0.0);
        }
        self.weights[step] += weight;
    }

    /// Sum of the weights at distances up to this one.
    pub(crate) fn sum_up_to(&self, distance: u64) -> f64 {
        let steps = (step_of(distance) + 1).min(self.weights.len());
        self.weights[..steps].iter().sum()
    }

    /// Largest distance that was added, rounded up; 0 if there is none.
    pub(crate) fn distance_max(&self) -> u64 {
        match self.weights.len() {
            0 => 0,
            count => last_of_step(count - 1),
        }
    }
}

/// Steps below `STEPS` are single distances; from there on each doubling has `STEPS` of them.
fn step_of(distance: u64) -> usize {
    let step = if distance < STEPS {
        distance
    } else {
        let shift = distance.ilog2() - STEPS_BITS;
        u64::from(shift + 1) * STEPS + ((distance >> shift) - STEPS)
    };
    usize::try_from(step).expect("there are some 7,000")
}

/// Largest distance of a step.
fn last_of_step(step: usize) -> u64 {
    let step = step as u64;
    if step < STEPS {
        return step;
    }
    let shift = step / STEPS - 1;
    let first = (STEPS + step % STEPS) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_one_another_without_gaps() {
        let mut before = 0;
        for distance in 1..100_000 {
            let step = step_of(distance);
            assert!(step == before || step == before + 1, "{distance}");
            assert!(last_of_step(step) >= distance);
            assert!(last_of_step(step) - distance <= distance / STEPS);
            before = step;
        }
        assert_eq!(last_of_step(step_of(u64::MAX)), u64::MAX);
    }

    #[test]
    fn sums_are_of_what_is_nearer() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.distance_max(), 0);
        histogram.add(3, 1.0);
        histogram.add(1_000, 2.5);
        assert_eq!(histogram.sum_up_to(2), 0.0);
        assert_eq!(histogram.sum_up_to(3), 1.0);
        assert_eq!(histogram.sum_up_to(u64::MAX), 3.5);
        assert!(histogram.distance_max() >= 1_000);
    }
}
