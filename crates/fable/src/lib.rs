//! Named flows that pick the best transport and change it while they live.
