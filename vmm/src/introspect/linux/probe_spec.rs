//! `--probe SYMBOL[:ARG,...]`: a function to be probed, and what of each call is kept.

use std::str::FromStr;

use thiserror::Error;

/// Registers in which integers and pointers are passed, in their order: the x86-64 psABI, section
/// 3.2.3.
const REGISTERS: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];

/// Why a probe cannot be meant so.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ProbeSpecError {
    /// No symbol, or not one of C's.
    #[error("{0:?} is no function's name, expected SYMBOL or SYMBOL:rdi,rsi")]
    Symbol(String),
    /// Not an argument.
    #[error(
        "{arg:?} is no argument of a probe on {symbol}, expected one of rdi, rsi, rdx, rcx, r8 and r9"
    )]
    Argument {
        /// The function.
        symbol: String,
        /// What was given.
        arg: String,
    },
}

/// A probe that the user asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The function.
    pub symbol: String,
    /// The arguments that are kept, by number from 0, in the order asked for.
    pub args: Vec<u8>,
}

impl ProbeSpec {
    /// The arguments that are kept, of the six registers of a call; each with its register's name.
    pub fn pick(&self, registers: [u64; 6]) -> impl Iterator<Item = (&'static str, u64)> {
        self.args.iter().filter_map(move |&arg| {
            let name = REGISTERS.get(usize::from(arg))?;
            Some((*name, registers[usize::from(arg)]))
        })
    }
}

impl FromStr for ProbeSpec {
    type Err = ProbeSpecError;

    fn from_str(text: &str) -> Result<Self, ProbeSpecError> {
        let (symbol, args) = match text.split_once(':') {
            Some((symbol, args)) => (symbol, Some(args)),
            None => (text, None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if symbol.is_empty() || symbol.len() > 511 || !symbol.chars().all(is_name) {
            return Err(ProbeSpecError::Symbol(symbol.to_owned()));
        }
        let number = |arg: &str| {
            let found = REGISTERS.iter().position(|&register| register == arg);
            found.map(|i| i as u8).ok_or_else(|| ProbeSpecError::Argument {
                symbol: symbol.to_owned(),
                arg: arg.to_owned(),
            })
        };
        let args = args.map(|args| args.split(',').map(number).collect());
        Ok(Self { symbol: symbol.to_owned(), args: args.unwrap_or(Ok(Vec::new()))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_a_symbol_and_the_registers_to_keep() {
        let spec: ProbeSpec = "update_load_avg:rsi,r9,rdi".parse().unwrap();
        assert_eq!((spec.symbol.as_str(), &spec.args[..]), ("update_load_avg", &[1, 5, 0][..]));
        let kept: Vec<_> = spec.pick([10, 11, 12, 13, 14, 15]).collect();
        assert_eq!(kept, [("rsi", 11), ("r9", 15), ("rdi", 10)]);
        let bare: ProbeSpec = "_nohz_idle_balance.isra.0".parse().unwrap();
        assert!(bare.args.is_empty());
    }

    #[test]
    fn what_is_no_probe_is_refused_by_what_is_wrong() {
        let refusal = |text: &str| text.parse::<ProbeSpec>().unwrap_err().to_string();
        assert_eq!(
            refusal("f:rdi,eax"),
            "\"eax\" is no argument of a probe on f, expected one of rdi, rsi, rdx, rcx, r8 and r9"
        );
        assert!(refusal("f:").starts_with("\"\" is no argument"));
        assert!(refusal("f:rdi,,rsi").starts_with("\"\" is no argument"));
        let none = "is no function's name, expected SYMBOL or SYMBOL:rdi,rsi";
        for symbol in ["", ":rdi", "a b", "f()", "a/b", &"x".repeat(512)] {
            assert!(refusal(symbol).ends_with(none), "{symbol}");
        }
    }
}
