//! Dimensions of rows: the axes of a sweep, by which rows differ beside their subject.

use std::collections::HashMap;

use crate::report::number;
use crate::results::{Kind, Row};

/// One axis of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dimension {
    Kind,
    Workload,
    Connections,
    Rate,
    RequestBytes,
    ResponseBytes,
    Transactions,
    Idle,
    Cores,
    Work,
    Network,
    Pipeline,
    Batch,
    Placement,
}

use Dimension::*;

impl Dimension {
    /// All dimensions, in the order of labels.
    pub(crate) const ALL: [Dimension; 14] = [
        Workload,
        Connections,
        Rate,
        Transactions,
        Idle,
        RequestBytes,
        ResponseBytes,
        Cores,
        Work,
        Network,
        Pipeline,
        Batch,
        Placement,
        Kind,
    ];

    /// Returns the name of a column or of an axis.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind => "load",
            Workload => "workload",
            Pipeline => "requests under way",
            Batch => "batch",
            Placement => "placement",
            Connections => "connections",
            Rate => "offered per second",
            RequestBytes => "request size",
            ResponseBytes => "response size",
            Transactions => "transactions per connection",
            Idle => "idle connections",
            Cores => "server cores",
            Work => "processing",
            Network => "network",
        }
    }

    /// Returns the row's value, as for a tick or a table's cell.
    pub(crate) fn value(self, row: &Row) -> String {
        match self {
            Kind => kind(row).to_owned(),
            Workload => row.workload.clone(),
            Pipeline => number::count(f64::from(row.pipeline)),
            Batch => number::count(f64::from(row.batch)),
            Placement => placement(row),
            Connections => number::count(row.connections as f64),
            Rate => row.request_rate.map_or(number::NOTHING.to_owned(), number::count),
            RequestBytes => number::bytes(row.request_bytes),
            ResponseBytes => number::bytes(row.response_bytes),
            Transactions if row.transactions == 0 => "persistent".to_owned(),
            Transactions => number::count(f64::from(row.transactions)),
            Idle => number::count(row.idle as f64),
            Cores => number::count(row.cores as f64),
            Work => row.work.clone(),
            Network => row.network.clone().unwrap_or_else(|| "loopback".to_owned()),
        }
    }

    /// Returns the row's value with its noun, such as `2,000 connections`.
    pub(crate) fn phrase(self, row: &Row) -> String {
        let value = self.value(row);
        match self {
            Kind => format!("{value} load"),
            Workload | Placement => value,
            Pipeline => plural(&value, row.pipeline as usize, "request") + " under way",
            Batch if row.batch == 1 => "no batching".to_owned(),
            Batch => format!("batches of {value}"),
            Connections => plural(&value, row.connections, "connection"),
            Rate if row.request_rate.is_none() => "as fast as answers come".to_owned(),
            Rate if row.kind == self::Kind::Churn => format!("{value} connections/s"),
            Rate => format!("{value} requests/s"),
            RequestBytes if row.kind == self::Kind::OneWay => format!("messages of {value}"),
            RequestBytes => format!("requests of {value}"),
            ResponseBytes => format!("responses of {value}"),
            Transactions if row.transactions == 0 => "persistent connections".to_owned(),
            Transactions => {
                plural(&value, row.transactions as usize, "transaction") + " per connection"
            }
            Idle => plural(&value, row.idle, "idle connection"),
            Cores => plural(&value, row.cores, "server core"),
            Work => format!("processing {value}"),
            Network => format!("network {value}"),
        }
    }

    /// Returns the key by which rows are sorted.
    pub(crate) fn rank(self, row: &Row) -> f64 {
        match self {
            Connections => row.connections as f64,
            Rate => row.request_rate.unwrap_or(0.0),
            RequestBytes => row.request_bytes as f64,
            ResponseBytes => row.response_bytes as f64,
            // Persistent connections sort as the largest number of transactions.
            Transactions if row.transactions == 0 => f64::from(u32::MAX) + 1.0,
            Transactions => f64::from(row.transactions),
            Idle => row.idle as f64,
            Cores => row.cores as f64,
            Pipeline => f64::from(row.pipeline),
            Batch => f64::from(row.batch),
            Kind | Workload | Work | Network | Placement => 0.0,
        }
    }
}

fn kind(row: &Row) -> &'static str {
    match row.kind {
        self::Kind::Open => "open",
        self::Kind::Closed => "closed",
        self::Kind::Churn => "churn",
        self::Kind::OneWay => "one-way",
    }
}

/// Returns the placement with its CPUs, because several pairs of CPUs may have the same placement.
fn placement(row: &Row) -> String {
    let cpus = |cpus: &[usize]| cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    match &row.placement {
        None => number::NOTHING.to_owned(),
        Some(placement) => {
            let is_pair = row.shares_core == Some(true) && row.client_cpus != row.server_cpus;
            let siblings = if is_pair { ", threads of one core" } else { "" };
            let (clients, servers) = (cpus(&row.client_cpus), cpus(&row.server_cpus));
            format!("{placement} ({clients} to {servers}{siblings})")
        }
    }
}

fn plural(value: &str, count: usize, noun: &str) -> String {
    format!("{value} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Returns the dimensions in which the rows differ.
pub(crate) fn varying(rows: &[Row]) -> Vec<Dimension> {
    let Some(first) = rows.first() else { return Vec::new() };
    let differs = |d: &Dimension| rows.iter().any(|row| d.value(row) != d.value(first));
    let mut dimensions: Vec<Dimension> = Dimension::ALL.into_iter().filter(differs).collect();
    let rows: Vec<&Row> = rows.iter().collect();
    dimensions.retain(|dimension| !is_implied(*dimension, &rows));
    dimensions
}

/// Returns whether other dimensions determine this one, so that its value would be redundant: every
/// response is as long as its request, or messages have none, or every workload has one kind of
/// load.
fn is_implied(dimension: Dimension, rows: &[&Row]) -> bool {
    match dimension {
        ResponseBytes => rows
            .iter()
            .all(|row| row.request_bytes == row.response_bytes || row.kind == self::Kind::OneWay),
        Kind => {
            let mut kinds = HashMap::new();
            rows.iter().all(|row| *kinds.entry(&row.workload).or_insert(row.kind) == row.kind)
        }
        _ => false,
    }
}

/// Rows that are equal in all dimensions but the left-out ones, and perhaps the subject.
pub(crate) struct Group<'a> {
    key: Vec<String>,
    pub(crate) label: String,
    pub(crate) rows: Vec<&'a Row>,
}

/// Sorts rows into groups that are equal in all dimensions except `left_out`. The label has the
/// dimensions that vary in `rows`.
pub(crate) fn groups<'a>(rows: &[&'a Row], left_out: &[Dimension]) -> Vec<Group<'a>> {
    let kept = || Dimension::ALL.into_iter().filter(|d| !left_out.contains(d));
    let mut groups: Vec<Group<'a>> = Vec::new();
    for row in rows {
        let key: Vec<String> = kept().map(|dimension| dimension.value(row)).collect();
        match groups.iter_mut().find(|group| group.key == key) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { key, label: String::new(), rows: vec![row] }),
        }
    }
    let varies: Vec<Dimension> = kept()
        .enumerate()
        .filter(|(place, _)| groups.iter().any(|group| group.key[*place] != groups[0].key[*place]))
        .map(|(_, dimension)| dimension)
        .filter(|dimension| !is_implied(*dimension, rows))
        .collect();
    for group in &mut groups {
        let row = group.rows[0];
        let phrases: Vec<String> = varies.iter().map(|dimension| dimension.phrase(row)).collect();
        group.label = if phrases.is_empty() { "all rows".to_owned() } else { phrases.join(", ") };
    }
    groups
}

/// Returns the values of a dimension in ascending order: rank and text, without duplicates.
pub(crate) fn values(dimension: Dimension, rows: &[&Row]) -> Vec<(f64, String)> {
    let mut values: Vec<(f64, String)> =
        rows.iter().map(|row| (dimension.rank(row), dimension.value(row))).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0).then_with(|| a.1.cmp(&b.1)));
    values.dedup();
    values
}
