//! Grids: a scenario under every combination of some overrides.
//!
//! An axis is a key of the scenario with its values; a cell is one value of each. `docs/grid.md` has the
//! columns of a cell's rows.

mod axis;
mod row;

pub use axis::{Axis, AxisError};
pub use row::{Format, Rows};

use thiserror::Error;

/// Most cells of a grid.
pub const MAX_CELLS: usize = 100_000;

/// Why axes make no grid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GridError {
    /// Two axes have one key.
    #[error("two axes set {key}; give all of its values to one of them")]
    Repeated {
        /// The key.
        key: String,
    },
    /// More cells than are run.
    #[error("{axes} make {cells} cells; at most {max}: give an axis fewer values", max = MAX_CELLS)]
    TooMany {
        /// The lengths of the axes.
        axes: String,
        /// Their product.
        cells: u128,
    },
}

/// The cells of a grid, row by row: the last axis changes fastest, the first one slowest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    axes: Vec<Axis>,
    cells: usize,
}

impl Grid {
    /// The grid of these axes; without any it has one cell.
    ///
    /// # Errors
    /// A key that is repeated; more than [`MAX_CELLS`] cells.
    pub fn new(axes: Vec<Axis>) -> Result<Self, GridError> {
        for (i, axis) in axes.iter().enumerate() {
            if axes[..i].iter().any(|earlier| earlier.key() == axis.key()) {
                return Err(GridError::Repeated { key: axis.key().to_owned() });
            }
        }
        let lengths = axes.iter().map(|axis| axis.values().len());
        let product: u128 = lengths.clone().map(|n| n as u128).product();
        match usize::try_from(product) {
            Ok(cells) if cells <= MAX_CELLS => Ok(Self { axes, cells }),
            _ => {
                let lengths: Vec<String> = lengths.map(|n| n.to_string()).collect();
                Err(GridError::TooMany { axes: lengths.join(" x "), cells: product })
            }
        }
    }

    /// Cells in it.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// The axes' keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.axes.iter().map(Axis::key)
    }

    /// The values of cell `index`, one for each axis.
    pub fn values(&self, index: usize) -> Vec<&str> {
        let mut rest = index;
        let value = |axis: &Axis| {
            let n = axis.values().len();
            let value = rest % n;
            rest /= n;
            value
        };
        let mut at: Vec<usize> = self.axes.iter().rev().map(value).collect();
        at.reverse();
        self.axes.iter().zip(at).map(|(axis, i)| axis.values()[i].as_str()).collect()
    }

    /// The overrides of cell `index`.
    pub fn sets(&self, index: usize) -> Vec<String> {
        let values = self.values(index);
        self.keys().zip(values).map(|(key, value)| format!("{key}={value}")).collect()
    }
}

#[cfg(test)]
mod tests;
