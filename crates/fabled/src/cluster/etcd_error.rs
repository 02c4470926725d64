//! Errors of calls to etcd, with their remedies.

use std::io;
use std::path::PathBuf;

use super::private_file::PrivateFileError;

/// Errors of a call to etcd.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// The text is not a usable endpoint.
    #[error("`{text}` is no endpoint of etcd ({why}); write --etcd https://HOST:PORT")]
    BadEndpoint {
        /// The text.
        text: String,
        /// What is wrong with the text.
        why: &'static str,
    },
    /// A file with certificates or a key is not usable.
    #[error("cannot use {path} for {option}: {why}; name a PEM file that `openssl` can show")]
    BadFile {
        /// The file.
        path: PathBuf,
        /// The option that names it.
        option: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file with a secret is not usable.
    #[error(transparent)]
    PrivateFile(#[from] PrivateFileError),
    /// etcd and this host do not accept each other's certificates, or the port has no TLS.
    #[error("no TLS connection with etcd at {endpoint}: {source}; {remedy}")]
    Tls {
        /// The endpoint.
        endpoint: String,
        /// The error of the TLS library.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What corrects it.
        remedy: &'static str,
    },
    /// etcd does not let the user in, or not to the zone's keys.
    #[error("etcd refuses access: {message}; {remedy}")]
    Access {
        /// etcd's message.
        message: String,
        /// What corrects it.
        remedy: &'static str,
    },
    /// The endpoint cannot be reached.
    #[error(
        "cannot connect to etcd at {endpoint}: {source}; check that it runs, and that no firewall \
         blocks its port"
    )]
    Unreachable {
        /// The endpoint.
        endpoint: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The endpoint did not answer in time.
    #[error(
        "etcd at {endpoint} did not answer within {timeout_ms} ms; check its load and its quorum"
    )]
    TimedOut {
        /// The endpoint.
        endpoint: String,
        /// The time-out, in milliseconds.
        timeout_ms: u128,
    },
    /// The connection broke, or the endpoint does not speak HTTP.
    #[error(
        "the connection to etcd at {endpoint} failed: {source}; check that it is etcd's client port"
    )]
    Broken {
        /// The endpoint.
        endpoint: String,
        /// The error of the HTTP library.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// etcd refused the call.
    #[error("etcd refused the request: {message} (HTTP status {status}); see etcd's log")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// etcd's message.
        message: String,
    },
    /// The answer cannot be parsed.
    #[error("cannot parse etcd's answer: {source}; use etcd 3.4 or later")]
    Malformed {
        /// The parser's error.
        source: serde_json::Error,
    },
    /// etcd has removed the revisions with which a watch should begin.
    #[error(
        "etcd has compacted its history up to revision {revision}; fabled reads all keys again"
    )]
    Compacted {
        /// The oldest revision that remains.
        revision: i64,
    },
}

impl EtcdError {
    /// Returns whether the call may succeed at another endpoint.
    pub(super) fn is_absence(&self) -> bool {
        match self {
            EtcdError::Unreachable { .. }
            | EtcdError::TimedOut { .. }
            | EtcdError::Tls { .. }
            | EtcdError::Broken { .. } => true,
            EtcdError::Refused { status, .. } => *status >= 500,
            _ => false,
        }
    }

    /// Returns whether the error means that a user's token has expired, or was made before the
    /// users of etcd changed.
    pub(super) fn is_stale_token(&self) -> bool {
        let stale =
            ["invalid auth token", "revision of auth store is old", "revision in header is old"];
        matches!(self, EtcdError::Refused { message, .. }
            if stale.iter().any(|text| message.contains(text)))
    }

    /// Returns whether the error means that a lease no longer exists.
    pub(super) fn is_lease_lost(&self) -> bool {
        matches!(self, EtcdError::Refused { message, .. } if message.contains("lease not found"))
    }
}

/// Returns the error for an answer with which etcd refuses a call.
pub(super) fn refused(status: u16, message: &str) -> EtcdError {
    const REMEDIES: [(&str, &str); 5] = [
        (
            "CommonName of client",
            "etcd's gateway takes no certificate with a CommonName: issue one without for \
             --etcd-certificate",
        ),
        ("authentication failed", "correct USER:PASSWORD in the file of --etcd-credentials"),
        ("authentication is not enabled", "run `etcdctl auth enable`, so that etcd uses passwords"),
        ("user name is empty", "it needs a user: name a file USER:PASSWORD by --etcd-credentials"),
        (
            "permission denied",
            "run `etcdctl role grant-permission ROLE readwrite --prefix=true /fable/ZONE/` for a \
             role of the user of --etcd-credentials",
        ),
    ];
    let message = message.trim_end().to_owned();
    match REMEDIES.iter().find(|(text, _)| message.contains(text)) {
        Some((_, remedy)) => EtcdError::Access { message, remedy },
        None => EtcdError::Refused { status, message },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_user_is_told_what_to_correct() {
        for (message, remedy) in [
            ("etcdserver: authentication failed, invalid user ID or password", "USER:PASSWORD"),
            ("etcdserver: authentication is not enabled", "auth enable"),
            ("etcdserver: user name is empty", "--etcd-credentials"),
            ("etcdserver: permission denied", "grant-permission"),
        ] {
            let text = refused(400, message).to_string();
            assert!(text.contains(message) && text.contains(remedy), "{text}");
        }
        assert!(refused(401, "etcdserver: invalid auth token").is_stale_token());
    }
}
