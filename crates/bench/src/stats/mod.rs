//! What can be said of repeated measurements. Pure.
