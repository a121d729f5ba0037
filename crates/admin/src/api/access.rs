//! Who sends a request, and whether they may change the configuration.

use super::{BODY_MAX, Context, fault, problem};
use crate::server::Peer;
use axum::Extension;
use axum::body::to_bytes;
use axum::extract::{Request, State as Shared};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use config::AdminAccess;
use reactor::limited;
use tracing::Level;

/// Everybody may read; users of the socket and holders of a token may make changes. Handlers get the
/// [`Peer`].
pub(super) async fn admit(
    Shared(context): Shared<Context>,
    Extension(peer): Extension<Peer>,
    mut request: Request,
    next: Next,
) -> Response {
    match identify(context.hub.access().rights(), peer, &request) {
        Ok(peer) => {
            request.extensions_mut().insert(peer);
            next.run(request).await
        }
        Err(response) => {
            // A connection that is closed before everything has been received is reset, and the answer may be
            // lost (RFC 9112 section 9.6).
            let _ = to_bytes(request.into_body(), BODY_MAX).await;
            *response
        }
    }
}

/// The peer, if it may make this request; otherwise the answer.
fn identify(access: &AdminAccess, peer: Peer, request: &Request) -> Result<Peer, Box<Response>> {
    let Peer::Remote(address) = peer else { return Ok(peer) };
    let given = request.headers().get(header::AUTHORIZATION);
    let (refusal, response) = match given {
        Some(given) => match bearer(given).and_then(|token| access.find(token)) {
            Some(token) => return Ok(Peer::Holder { token: token.clone(), address }),
            None => ("the token is invalid", wrong_token()),
        },
        None if [Method::GET, Method::HEAD].contains(request.method()) => return Ok(peer),
        None if access.tokens.is_empty() => ("there are no tokens", read_only()),
        None => ("it has no token", no_token()),
    };
    let (method, path) = (request.method(), request.uri().path());
    limited!("refused admin requests", Level::WARN, who = %address, "admin: {method} {path}: refused: {refusal}");
    Err(response.into())
}

/// The token of `Bearer TOKEN` (RFC 6750 section 2.1; RFC 9110 section 11.1: the scheme in any case).
fn bearer(field: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = field.as_bytes().split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| token.trim_ascii())
}

fn read_only() -> Response {
    let fix = "set admin_token_file in the daemon's configuration, reload the daemon (SIGHUP), and send one of its tokens";
    let fault = fault("connection", "over TCP the daemon is read-only", fix);
    problem(StatusCode::FORBIDDEN, "this connection is read-only", &[fault])
}

fn no_token() -> Response {
    let fix = "send Authorization: Bearer TOKEN, with a token of the daemon's admin_token_file (lunette: --admin-token-file)";
    let fault = fault("Authorization", "this is missing", fix);
    let title = "over TCP a change needs a token";
    challenge("Bearer realm=\"lunette\"", problem(StatusCode::UNAUTHORIZED, title, &[fault]))
}

fn wrong_token() -> Response {
    let fix =
        "use a token of the daemon's admin_token_file; after editing the file, reload the daemon (SIGHUP)";
    let fault = fault("Authorization", "no such token", fix);
    challenge(INVALID, problem(StatusCode::UNAUTHORIZED, "the token is invalid", &[fault]))
}

/// The error code for an invalid token (RFC 6750 section 3.1).
pub(super) const INVALID: &str = "Bearer realm=\"lunette\", error=\"invalid_token\"";

/// A refusal that says how to authenticate (RFC 6750 section 3).
pub(super) fn challenge(scheme: &'static str, mut response: Response) -> Response {
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(scheme));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_is_known_in_any_case_and_no_other_is() {
        let token = |text: &str| {
            bearer(&HeaderValue::from_bytes(text.as_bytes()).expect("a field")).map(<[u8]>::to_vec)
        };
        for text in ["Bearer abc", "bearer   abc "] {
            assert_eq!(token(text).as_deref(), Some(&b"abc"[..]), "{text}");
        }
        for text in ["Basic abc", "Bearer", "abc", "Bearerabc", "Bear\u{e9}r abc"] {
            assert_eq!(token(text), None, "{text}");
        }
    }
}
