//! The rqscope library.
