//! Crafted kernels, and real ones where there are some.

mod blob;
mod btf;
mod fake;
mod groups;
mod kernels;
mod patch;
mod real;
mod run_view;
mod shift;
mod symbols;
