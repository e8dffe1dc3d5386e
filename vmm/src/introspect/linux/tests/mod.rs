//! Crafted kernels, and real ones where there are some.

mod real;
mod shift;
