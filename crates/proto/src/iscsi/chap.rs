//! CHAP (RFC 1994, RFC 7143 sections 9.2.1 and 12.1.3), both ways, both roles.

use crate::iscsi::text::{self, Hexadecimal};
use sha1::Digest;
use std::fmt;
use subtle::ConstantTimeEq;

/// The longest challenge that is accepted, in bytes (section 12.1.3).
pub const CHALLENGE_BYTES_MAX: usize = 1024;
/// The shortest challenge of a target that an initiator answers, in bytes. A peer that chooses a short one
/// may have precomputed tables for it. Section 12.1.3 has no lower bound; targets send 16 and more.
pub const CHALLENGE_BYTES_MIN: usize = 16;
/// Bytes of the longest response.
pub const RESPONSE_BYTES_MAX: usize = 32;

/// A hash, by its number in IANA's registry of PPP authentication algorithms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// MD5, which every implementation supports.
    Md5,
    /// SHA-1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA3-256.
    Sha3,
}

impl Algorithm {
    /// All, the strongest first.
    pub const ALL: [Algorithm; 4] = [Algorithm::Sha3, Algorithm::Sha256, Algorithm::Sha1, Algorithm::Md5];

    /// The registered number.
    pub fn number(self) -> u8 {
        match self {
            Algorithm::Md5 => 5,
            Algorithm::Sha1 => 6,
            Algorithm::Sha256 => 7,
            Algorithm::Sha3 => 8,
        }
    }

    /// Its name in configurations, URLs and the log.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Md5 => "md5",
            Algorithm::Sha1 => "sha1",
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha3 => "sha3-256",
        }
    }

    /// The algorithm of this name.
    pub fn named(name: &str) -> Option<Algorithm> {
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    /// The first known algorithm in a CHAP_A list.
    pub fn choose(list: &str) -> Option<Algorithm> {
        offered(list).next()
    }

    /// The first of `accepted` that a CHAP_A list includes; if none is required, the list's preference.
    pub fn choose_of(accepted: &[Algorithm], list: &str) -> Result<Algorithm, Failure> {
        if accepted.is_empty() {
            return Algorithm::choose(list).ok_or(Failure::NoAlgorithm);
        }
        let found = accepted.iter().find(|algorithm| offered(list).any(|one| one == **algorithm));
        found.copied().ok_or(Failure::NoAlgorithm)
    }

    /// Bytes of a response.
    pub fn response_bytes(self) -> usize {
        match self {
            Algorithm::Md5 => 16,
            Algorithm::Sha1 => 20,
            Algorithm::Sha256 | Algorithm::Sha3 => 32,
        }
    }

    /// The response to a challenge: the hash of identifier, secret and challenge.
    pub fn response(self, challenge: &Challenge, secret: &[u8]) -> Vec<u8> {
        match self {
            Algorithm::Md5 => hash::<md5::Md5>(challenge, secret),
            Algorithm::Sha1 => hash::<sha1::Sha1>(challenge, secret),
            Algorithm::Sha256 => hash::<sha2::Sha256>(challenge, secret),
            Algorithm::Sha3 => hash::<sha3::Sha3_256>(challenge, secret),
        }
    }
}

fn hash<D: Digest>(challenge: &Challenge, secret: &[u8]) -> Vec<u8> {
    let mut hash = D::new();
    hash.update([challenge.identifier]);
    hash.update(secret);
    hash.update(&challenge.bytes);
    hash.finalize().to_vec()
}

/// CHAP_I and CHAP_C.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Challenge {
    identifier: u8,
    bytes: Vec<u8>,
}

impl Challenge {
    /// A challenge of our own from random bytes.
    pub fn new(algorithm: Algorithm, random: &[u8; Challenge::RANDOM_BYTES]) -> Challenge {
        let [identifier, rest @ ..] = random;
        let bytes = rest.get(..algorithm.response_bytes()).unwrap_or(rest).to_vec();
        Challenge { identifier: *identifier, bytes }
    }

    /// Random bytes that a challenge needs.
    pub const RANDOM_BYTES: usize = RESPONSE_BYTES_MAX + 1;

    /// The peer's challenge.
    pub fn parse(identifier: &str, challenge: &str) -> Result<Challenge, Failure> {
        let identifier = text::number(identifier).and_then(|number| u8::try_from(number).ok());
        Ok(Challenge {
            identifier: identifier.ok_or(Failure::Malformed("CHAP_I"))?,
            bytes: text::binary(challenge, CHALLENGE_BYTES_MAX).ok_or(Failure::Malformed("CHAP_C"))?,
        })
    }

    /// Whether it is long enough to be answered with a hash of the secret.
    pub fn check_length(&self) -> Result<(), Failure> {
        if self.bytes.len() < CHALLENGE_BYTES_MIN { Err(Failure::Short) } else { Ok(()) }
    }

    /// Appends CHAP_I and CHAP_C.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        text::append(out, "CHAP_I", self.identifier);
        text::append(out, "CHAP_C", Hexadecimal(&self.bytes));
    }
}

/// An identity, and the secret that proves it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// CHAP_N. It is text, even if it begins with "0x" or "0b".
    pub name: String,
    /// The secret.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The known algorithms of a CHAP_A list, in its order.
fn offered(list: &str) -> impl Iterator<Item = Algorithm> {
    list.split(',').filter_map(|value| {
        let number = text::number(value)?;
        Algorithm::ALL.into_iter().find(|algorithm| u64::from(algorithm.number()) == number)
    })
}

/// Why an authentication failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No algorithm in common.
    NoAlgorithm,
    /// This key is missing.
    Missing(&'static str),
    /// This key's value is malformed or has a wrong length.
    Malformed(&'static str),
    /// The challenge has fewer than [`CHALLENGE_BYTES_MIN`] bytes.
    Short,
    /// Wrong name or secret.
    Wrong,
    /// The peer sent our own challenge back (section 9.2.1).
    Reflected,
    /// Both directions use the same secret (section 9.2.1).
    SameSecret,
    /// The peer requests mutual authentication, for which we have no secret.
    NotMutual,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoAlgorithm => f.write_str("no CHAP algorithm in common"),
            Failure::Missing(key) => write!(f, "{key} is missing"),
            Failure::Malformed(key) => write!(f, "{key} is malformed"),
            Failure::Short => write!(f, "the CHAP challenge has less than {CHALLENGE_BYTES_MIN} bytes"),
            Failure::Wrong => f.write_str("wrong CHAP name or secret"),
            Failure::Reflected => f.write_str("CHAP challenge reflected (RFC 7143 section 9.2.1)"),
            Failure::SameSecret => {
                f.write_str("one CHAP secret for both directions (RFC 7143 section 9.2.1)")
            }
            Failure::NotMutual => f.write_str("mutual CHAP is not configured"),
        }
    }
}

/// Verifies the peer's answer to our `challenge`. `ours` are our own credentials towards it, if we have any:
/// the same response from our own secret means that one secret is used in both directions.
pub fn verify(
    algorithm: Algorithm,
    challenge: &Challenge,
    expected: &Credentials,
    ours: Option<&Credentials>,
    name: &str,
    response: &str,
) -> Result<(), Failure> {
    let response = text::binary(response, RESPONSE_BYTES_MAX)
        .filter(|response| response.len() == algorithm.response_bytes())
        .ok_or(Failure::Malformed("CHAP_R"))?;
    let right = algorithm.response(challenge, &expected.secret).ct_eq(&response)
        & expected.name.as_bytes().ct_eq(name.as_bytes());
    if let Some(ours) = ours
        && bool::from(algorithm.response(challenge, &ours.secret).ct_eq(&response))
    {
        return Err(Failure::SameSecret);
    }
    if bool::from(right) { Ok(()) } else { Err(Failure::Wrong) }
}

/// Answers the peer's challenge `theirs`, appending CHAP_N and CHAP_R. `own` is the challenge that we sent, if any.
pub fn answer(
    algorithm: Algorithm,
    theirs: &Challenge,
    own: Option<&Challenge>,
    identity: &Credentials,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    if own.is_some_and(|own| own.bytes == theirs.bytes) {
        return Err(Failure::Reflected);
    }
    text::append(out, "CHAP_N", &identity.name);
    text::append(out, "CHAP_R", Hexadecimal(&algorithm.response(theirs, &identity.secret)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn challenge() -> Challenge {
        Challenge::parse("0x17", "0x000102030405060708090a0b0c0d0e0f").unwrap()
    }

    fn identity(name: &str, secret: &str) -> Credentials {
        Credentials { name: name.into(), secret: secret.into() }
    }

    /// Computed with another implementation (Python's hashlib).
    #[test]
    fn responses_are_the_hashes() {
        for (algorithm, expected) in [
            (Algorithm::Md5, "0x673b37a54b335275d71cb114c932213e"),
            (Algorithm::Sha1, "0x0b58db7385f1664b250d089ce9bb940de09aed62"),
            (Algorithm::Sha256, "0xf97058a0a7a9e4faf1b7b52f072e09fca858009dad4988e44139a1cac0b14fff"),
            (Algorithm::Sha3, "0xaffee1ab50752bd95f57971565f94670e819a56663b9ac1e2e82881fb561e6c9"),
        ] {
            let response = algorithm.response(&challenge(), b"secret secret");
            assert_eq!(Hexadecimal(&response).to_string(), expected);
            assert_eq!(response.len(), algorithm.response_bytes());
        }
    }

    #[test]
    fn the_peers_order_decides() {
        assert_eq!(Algorithm::choose("5"), Some(Algorithm::Md5));
        assert_eq!(Algorithm::choose("9,0x8,5"), Some(Algorithm::Sha3));
        assert_eq!(Algorithm::choose("6,7"), Some(Algorithm::Sha1));
        assert_eq!(Algorithm::choose("4,x,"), None);
    }

    #[test]
    fn challenges_are_bounded() {
        let long = |bytes: usize| format!("0x{}", "ab".repeat(bytes));
        assert!(Challenge::parse("255", &long(1024)).is_ok());
        assert_eq!(Challenge::parse("255", &long(1025)), Err(Failure::Malformed("CHAP_C")));
        assert_eq!(Challenge::parse("256", "0x01"), Err(Failure::Malformed("CHAP_I")));
        assert_eq!(Challenge::parse("", "0x01"), Err(Failure::Malformed("CHAP_I")));
        assert_eq!(Challenge::parse("1", "zz"), Err(Failure::Malformed("CHAP_C")));
    }

    #[test]
    fn a_right_answer_is_taken_and_a_wrong_one_is_not() {
        for algorithm in Algorithm::ALL {
            let own = Challenge::new(algorithm, &[7; Challenge::RANDOM_BYTES]);
            // A name that looks like a number is a name.
            let alice = identity("0x416c696365", "secret of alice");
            let mut out = Vec::new();
            answer(algorithm, &own, None, &alice, &mut out).unwrap();
            let pairs = text::pairs(&out).unwrap();
            let (name, response) = (pairs[0].1, pairs[1].1);
            assert_eq!(verify(algorithm, &own, &alice, None, name, response), Ok(()));
            let other = identity("0x416c696365", "another");
            assert_eq!(verify(algorithm, &own, &other, None, name, response), Err(Failure::Wrong));
            assert_eq!(verify(algorithm, &own, &alice, None, "Alice", response), Err(Failure::Wrong));
            let short = &response[..response.len() - 2];
            assert_eq!(verify(algorithm, &own, &alice, None, name, short), Err(Failure::Malformed("CHAP_R")));
            let target = identity("target", "secret of alice");
            let same = verify(algorithm, &own, &alice, Some(&target), name, response);
            assert_eq!(same, Err(Failure::SameSecret));
        }
    }

    #[test]
    fn a_reflected_challenge_is_refused() {
        let own = challenge();
        let theirs = Challenge::parse("1", "0bAAECAwQFBgcICQoLDA0ODw==").unwrap();
        let mut out = Vec::new();
        let refused = answer(Algorithm::Md5, &theirs, Some(&own), &identity("a", "b"), &mut out);
        assert_eq!(refused, Err(Failure::Reflected));
        assert!(out.is_empty());
    }
}
