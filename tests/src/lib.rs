//! Whole-program tests live in the integration test of this package.
