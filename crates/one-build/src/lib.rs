//! Nothing but dependencies: those that both levels of tests compile, with the features that only
//! the second level's packages ask for.
//!
//! cargo compiles a dependency anew, and all above it, if a build selects other packages and these
//! ask for other features. With this crate in the build of the first level, the second level only
//! compiles what is new. No product depends on it.
