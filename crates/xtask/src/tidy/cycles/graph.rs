//! Finds the cycles of a small directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// The edges between nodes, each with one example.
#[derive(Debug, Default)]
pub(super) struct Graph {
    edges: BTreeMap<String, BTreeMap<String, String>>,
}

/// Nodes that all reach one another, and the edges between them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Cycle {
    pub(super) nodes: Vec<String>,
    /// From, to, example.
    pub(super) edges: Vec<(String, String, String)>,
}

impl Graph {
    /// Adds an edge; the first example is kept. An edge from a node to itself is ignored.
    pub(super) fn add(&mut self, from: &str, to: &str, example: impl FnOnce() -> String) {
        if from != to {
            let edges = self.edges.entry(from.to_string()).or_default();
            edges.entry(to.to_string()).or_insert_with(example);
        }
    }

    /// Returns the strongly connected components of more than one node.
    pub(super) fn cycles(&self) -> Vec<Cycle> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|node| (node.as_str(), self.reached(node))).collect();
        let leads =
            |from: &str, to: &str| reached.get(from).is_some_and(|nodes| nodes.contains(to));
        let mut seen = BTreeSet::new();
        let mut cycles = Vec::new();
        for &node in reached.keys().filter(|node| leads(node, node)) {
            let is_member = |other: &&str| leads(node, other) && leads(other, node);
            let nodes: Vec<&str> = reached.keys().copied().filter(is_member).collect();
            if seen.insert(nodes[0]) {
                cycles.push(self.cycle(&nodes));
            }
        }
        cycles
    }

    /// Returns every node that a path of at least one edge reaches.
    fn reached<'a>(&'a self, from: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(node) = open.pop() {
            let next = self.edges.get(node).into_iter().flat_map(BTreeMap::keys);
            open.extend(next.map(String::as_str).filter(|next| reached.insert(*next)));
        }
        reached
    }

    fn cycle(&self, nodes: &[&str]) -> Cycle {
        let edges = nodes.iter().flat_map(|from| {
            let to = self.edges[*from].iter().filter(|(to, _)| nodes.contains(&to.as_str()));
            to.map(|(to, example)| (from.to_string(), to.clone(), example.clone()))
        });
        Cycle { edges: edges.collect(), nodes: nodes.iter().map(ToString::to_string).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycles(edges: &[(&str, &str)]) -> Vec<Vec<String>> {
        let mut graph = Graph::default();
        edges.iter().for_each(|(from, to)| graph.add(from, to, String::new));
        graph.cycles().into_iter().map(|cycle| cycle.nodes).collect()
    }

    #[test]
    fn paths_that_meet_again_are_no_cycle() {
        assert!(cycles(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "d")]).is_empty());
    }

    #[test]
    fn each_cycle_is_found_once_without_what_only_leads_to_it() {
        let edges = [("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "y"), ("p", "q")];
        assert_eq!(cycles(&edges), [["a", "b", "c"]]);
        let two = [edges.as_slice(), &[("q", "p"), ("a", "p")]].concat();
        assert_eq!(cycles(&two), [vec!["a", "b", "c"], vec!["p", "q"]]);
    }

    #[test]
    fn the_edges_are_those_within_and_keep_their_first_example() {
        let mut graph = Graph::default();
        for (from, to, example) in
            [("a", "b", "1"), ("b", "a", "2"), ("a", "b", "3"), ("b", "c", "4")]
        {
            graph.add(from, to, || example.to_string());
        }
        let edge = |from: &str, to: &str, e: &str| (from.into(), to.into(), e.into());
        assert_eq!(graph.cycles()[0].edges, [edge("a", "b", "1"), edge("b", "a", "2")]);
    }
}
