//! Crafted kernels, and real ones where there are some.

mod blob;
mod btf;
mod fake;
mod groups;
mod kernels;
mod patch;
mod random;
mod real;
mod run_view;
mod shapes;
mod shift;
mod symbols;
