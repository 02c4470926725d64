//! Messages of etcd's JSON gateway: those of its `rpc.proto`, in proto3's JSON mapping. 64-bit
//! numbers are strings, bytes are base64, and zero values are omitted.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A key or a value, in base64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Bytes {
    /// Wraps a text's bytes.
    pub(super) fn of(text: &str) -> Bytes {
        Bytes(text.as_bytes().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(Bytes).map_err(serde::de::Error::custom)
    }
}

/// A 64-bit number, as a string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(pub(super) i64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Number).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    pub(super) revision: Number,
    pub(super) cluster_id: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct KeyValue {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    pub(super) mod_revision: Number,
    pub(super) lease: Number,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct RangeRequest {
    pub(super) key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) range_end: Option<Bytes>,
    pub(super) limit: Number,
    pub(super) revision: Number,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RangeResponse {
    pub(super) header: Header,
    pub(super) kvs: Vec<KeyValue>,
    pub(super) more: bool,
}

/// A condition of a transaction.
#[derive(Debug, Serialize)]
pub(super) struct Compare {
    key: Bytes,
    target: &'static str,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    create_revision: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mod_revision: Option<Number>,
}

impl Compare {
    /// Makes the condition that the key does not exist.
    pub(super) fn absent(key: &str) -> Compare {
        Compare {
            key: Bytes::of(key),
            target: "CREATE",
            result: "EQUAL",
            create_revision: Some(Number(0)),
            mod_revision: None,
        }
    }

    /// Makes the condition that the key was not changed after this revision.
    pub(super) fn unchanged(key: &str, revision: i64) -> Compare {
        Compare {
            key: Bytes::of(key),
            target: "MOD",
            result: "EQUAL",
            create_revision: None,
            mod_revision: Some(Number(revision)),
        }
    }
}

/// A step of a transaction: exactly one of the fields is set.
#[derive(Debug, Serialize)]
pub(super) enum Step {
    #[serde(rename = "request_put")]
    Put { key: Bytes, value: Bytes, lease: Number },
    #[serde(rename = "request_delete_range")]
    Delete { key: Bytes },
    #[serde(rename = "request_range")]
    Get { key: Bytes },
}

#[derive(Debug, Serialize)]
pub(super) struct Transaction {
    pub(super) compare: Vec<Compare>,
    pub(super) success: Vec<Step>,
    pub(super) failure: Vec<Step>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct TransactionResponse {
    pub(super) header: Header,
    pub(super) succeeded: bool,
    pub(super) responses: Vec<StepResponse>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StepResponse {
    pub(super) response_range: Option<RangeResponse>,
}

#[derive(Serialize)]
pub(super) struct AuthenticateRequest<'a> {
    pub(super) name: &'a str,
    pub(super) password: &'a str,
}

#[derive(Deserialize)]
pub(super) struct AuthenticateResponse {
    pub(super) token: String,
}

#[derive(Debug, Serialize)]
pub(super) struct GrantRequest {
    #[serde(rename = "TTL")]
    pub(super) ttl_s: Number,
}

#[derive(Debug, Serialize)]
pub(super) struct LeaseRequest {
    #[serde(rename = "ID")]
    pub(super) lease: Number,
}

/// The answer to a grant, and within [`Streamed`] to a keep-alive. Without a time to live, the
/// lease no longer exists.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LeaseResponse {
    #[serde(rename = "ID")]
    pub(super) lease: Number,
    #[serde(rename = "TTL")]
    pub(super) ttl_s: Number,
}

/// An answer whose content is not used.
#[derive(Debug, Deserialize)]
pub(super) struct Nothing {}

#[derive(Debug, Serialize)]
pub(super) struct WatchRequest {
    pub(super) create_request: WatchCreate,
}

#[derive(Debug, Serialize)]
pub(super) struct WatchCreate {
    pub(super) key: Bytes,
    pub(super) range_end: Bytes,
    pub(super) start_revision: Number,
}

/// One line of a streamed answer.
#[derive(Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub(super) result: Option<T>,
    pub(super) error: Option<serde_json::Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchResponse {
    pub(super) header: Header,
    pub(super) canceled: bool,
    pub(super) compact_revision: Number,
    pub(super) cancel_reason: String,
    pub(super) events: Vec<WatchEvent>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WatchEvent {
    /// Absent for a put.
    #[serde(rename = "type")]
    pub(super) kind: EventKind,
    pub(super) kv: KeyValue,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) enum EventKind {
    #[default]
    #[serde(rename = "PUT")]
    Put,
    #[serde(rename = "DELETE")]
    Delete,
}

/// Returns the smallest key after all keys with this prefix, which must not end in 0xff.
pub(super) fn behind_prefix(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    Bytes(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_written_as_the_gateway_reads_them() {
        let transaction = Transaction {
            compare: vec![Compare::absent("a")],
            success: vec![Step::Put {
                key: Bytes::of("a"),
                value: Bytes::of("1"),
                lease: Number(7),
            }],
            failure: vec![Step::Get { key: Bytes::of("a") }],
        };
        let absent = r#""target":"CREATE","result":"EQUAL","create_revision":"0""#;
        assert_eq!(
            serde_json::to_string(&transaction).unwrap(),
            format!(r#"{{"compare":[{{"key":"YQ==",{absent}}}],"#)
                + r#""success":[{"request_put":{"key":"YQ==","value":"MQ==","lease":"7"}}],"#
                + r#""failure":[{"request_range":{"key":"YQ=="}}]}"#
        );
        assert_eq!(behind_prefix("/fable/z/"), Bytes::of("/fable/z0"));
    }

    #[test]
    fn answers_may_leave_out_what_is_zero() {
        let line = r#"{"result":{"header":{"cluster_id":"1","revision":"9"},"events":[
            {"kv":{"key":"YQ==","mod_revision":"9","value":"MQ==","version":"1"}},
            {"type":"DELETE","kv":{"key":"Yg==","mod_revision":"9"}}]}}"#;
        let batch: Streamed<WatchResponse> = serde_json::from_str(line).unwrap();
        let batch = batch.result.unwrap();
        assert_eq!(batch.header.revision, Number(9));
        assert!(!batch.canceled && batch.compact_revision == Number(0));
        assert_eq!(batch.events[0].kind, EventKind::Put);
        assert_eq!(batch.events[0].kv.value, Bytes::of("1"));
        assert_eq!(batch.events[1].kind, EventKind::Delete);
        for hostile in [r#"{"result":{"header":{"revision":"x"}}}"#, r#"{"result":7}"#] {
            assert!(serde_json::from_str::<Streamed<WatchResponse>>(hostile).is_err(), "{hostile}");
        }
    }
}
