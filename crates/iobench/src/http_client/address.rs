//! URLs of HTTP servers: `http://`, `https://` and `unix:SOCKET:PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;
use hyper::http::uri::PathAndQuery;

/// A URL, split into what a client needs of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) place: Place,
    /// The host as the server is told it, with the port if the URL has one.
    pub(crate) authority: String,
    /// Path and query; begins with a slash.
    pub(crate) path: String,
}

/// Where the server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// A name or an address, without brackets.
    Host {
        name: String,
        port: u16,
        tls: bool,
    },
    Unix(PathBuf),
}

impl Url {
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self.place, Place::Host { tls: true, .. })
    }

    /// Returns the scheme by which HTTP/2 names the server.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_tls() { "https" } else { "http" }
    }

    /// Returns the same server with another path and query.
    pub(crate) fn with_path(&self, path: &str) -> Result<Url, String> {
        let path = PathAndQuery::try_from(path).map_err(|error| format!("`{path}`: {error}"))?;
        Ok(Url { path: path.to_string(), ..self.clone() })
    }

    /// Returns the URL that a redirect of this one leads to (RFC 9110, section 10.2.2). A server on
    /// a UNIX socket is left by no redirect.
    pub(crate) fn redirected(&self, location: &str) -> Result<Url, String> {
        let absolute = match location.strip_prefix("//") {
            Some(rest) => format!("{}://{rest}", self.scheme()),
            None => location.to_owned(),
        };
        if absolute.contains("://") && !absolute.starts_with('/') {
            let url: Url = absolute.parse()?;
            return match self.place {
                Place::Unix(_) => self.with_path(&url.path),
                Place::Host { .. } => Ok(url),
            };
        }
        let location = location.split('#').next().unwrap_or_default();
        let path = self.path.split('?').next().unwrap_or_default();
        match location.chars().next() {
            None => Ok(self.clone()),
            Some('/') => self.with_path(location),
            Some('?') => self.with_path(&format!("{path}{location}")),
            Some(_) => {
                let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
                self.with_path(&format!("{directory}/{location}"))
            }
        }
    }
}

impl FromStr for Url {
    type Err = String;

    fn from_str(text: &str) -> Result<Url, String> {
        if let Some(rest) = text.strip_prefix("unix:") {
            let (socket, path) = rest.split_once(':').unwrap_or((rest, "/"));
            if socket.is_empty() || !path.starts_with('/') {
                return Err("write unix:SOCKET:PATH, such as unix:/run/app.sock:/status".to_owned());
            }
            let place = Place::Unix(PathBuf::from(socket));
            let root = Url { place, authority: "localhost".to_owned(), path: String::new() };
            return root.with_path(path);
        }
        let form = || "write http://HOST[:PORT]/PATH, https://… or unix:SOCKET:PATH".to_owned();
        let uri: Uri = text.parse().map_err(|error| format!("{error}; {}", form()))?;
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(form()),
        };
        let authority = uri.authority().ok_or_else(form)?;
        if authority.as_str().contains('@') {
            return Err("a URL cannot contain credentials here; pass them by --header \
                        'Authorization: …'"
                .to_owned());
        }
        let name = authority.host().trim_matches(['[', ']']).to_owned();
        let port = match (authority.port_u16(), authority.as_str().rsplit_once(':')) {
            (Some(port), _) => port,
            // `:` of an IPv6 address in brackets, or none at all.
            (None, after) if after.is_none_or(|(_, last)| last.ends_with(']')) => {
                if tls {
                    443
                } else {
                    80
                }
            }
            _ => return Err(format!("`{authority}` has no port between 0 and 65535")),
        };
        if name.is_empty() {
            return Err(form());
        }
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        // A query without a path: the path is the root.
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Url { place: Place::Host { name, port, tls }, authority: authority.to_string(), path })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Url { place, authority, path } = self;
        match place {
            Place::Unix(socket) => write!(formatter, "unix:{}:{path}", socket.display()),
            Place::Host { .. } => write!(formatter, "{}://{authority}{path}", self.scheme()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn urls_are_split_and_written_back() {
        for text in [
            "http://localhost:8080/a?b=c",
            "https://[::1]:8443/",
            "http://example.org/",
            "unix:/run/app.sock:/status?full",
        ] {
            assert_eq!(url(text).to_string(), text);
        }
        let host = |name: &str, port, tls| Place::Host { name: name.to_owned(), port, tls };
        assert_eq!(url("http://example.org").place, host("example.org", 80, false));
        assert_eq!(url("http://example.org?q").path, "/?q");
        assert_eq!(url("https://[::1]").place, host("::1", 443, true));
        assert_eq!(url("unix:app.sock").to_string(), "unix:app.sock:/");
    }

    #[test]
    fn other_texts_are_refused_with_the_right_form() {
        for wrong in ["", "localhost:80", "/path", "ftp://x/", "unix:", "unix:/s:x", "http://"] {
            let error = wrong.parse::<Url>().unwrap_err();
            assert!(error.contains("unix:SOCKET:PATH"), "{wrong}: {error}");
        }
        assert!("http://h:99999/".parse::<Url>().unwrap_err().contains("port"));
        assert!("http://a:b@h/".parse::<Url>().unwrap_err().contains("--header"));
    }

    #[test]
    fn redirects_are_relative_to_their_url() {
        let from = |location: &str| url("http://h/a/b?c").redirected(location).unwrap().to_string();
        assert_eq!(from("https://other/x"), "https://other/x");
        assert_eq!(from("//other/x"), "http://other/x");
        assert_eq!(from("/x?y=//z#part"), "http://h/x?y=//z");
        assert_eq!(from("x"), "http://h/a/x");
        assert_eq!(from("?d"), "http://h/a/b?d");
        let socket = url("unix:/s:/a").redirected("http://localhost/b").unwrap();
        assert_eq!(socket.to_string(), "unix:/s:/b");
    }
}
