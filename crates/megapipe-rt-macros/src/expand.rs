//! Makes the code of the attribute.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Error, Expr, ItemFn, MetaNameValue, Result, Token};

/// The names of the arguments, which are also those of the methods of `Builder`.
const ARGUMENTS: [&str; 2] = ["cores", "pinned"];

/// Returns the function that runs the body in a runtime; or else the error, with a `main` so that
/// it is the only one.
pub(crate) fn main(arguments: TokenStream, function: TokenStream) -> TokenStream {
    match expand(arguments, function) {
        Ok(tokens) => tokens,
        Err(error) => {
            let error = error.into_compile_error();
            quote! {
                #error
                fn main() {}
            }
        }
    }
}

fn expand(arguments: TokenStream, function: TokenStream) -> Result<TokenStream> {
    let ItemFn { attrs, vis, sig, block, .. } = syn::parse2(function)?;
    if sig.asyncness.is_none() {
        let text = "megapipe_rt::main is for an async fn: write `async` before `fn`, or remove the \
                    attribute";
        return Err(Error::new(sig.fn_token.span, text));
    }
    if !sig.inputs.is_empty() {
        let text = "the function of megapipe_rt::main has no parameters: use std::env::args for \
                    arguments of the program";
        return Err(Error::new(sig.inputs.span(), text));
    }
    if !sig.generics.params.is_empty() {
        let text = "the function of megapipe_rt::main has no type parameters: remove them";
        return Err(Error::new(sig.generics.span(), text));
    }
    let settings = settings(arguments)?;
    let name = &sig.ident;
    let mut outer = sig.clone();
    outer.asyncness = None;
    Ok(quote! {
        #(#attrs)*
        #vis #outer {
            #sig #block
            match ::megapipe_rt::Runtime::builder() #settings .build() {
                ::std::result::Result::Ok(runtime) => runtime.block_on(#name()),
                ::std::result::Result::Err(error) => {
                    ::std::panic!("cannot start the runtime: {error}")
                }
            }
        }
    })
}

/// Returns a method call for each argument.
fn settings(arguments: TokenStream) -> Result<TokenStream> {
    let parser = Punctuated::<MetaNameValue, Token![,]>::parse_terminated;
    let mut calls = TokenStream::new();
    let mut seen = Vec::new();
    for MetaNameValue { path, value, .. } in parser.parse2(arguments)? {
        let name = ARGUMENTS.into_iter().find(|name| path.is_ident(name)).ok_or_else(|| {
            let text = "megapipe_rt::main takes the arguments `cores = N` and `pinned = false`; \
                        for other settings use Runtime::builder";
            Error::new(path.span(), text)
        })?;
        if seen.contains(&name) {
            return Err(Error::new(path.span(), format!("`{name}` is set twice: remove one")));
        }
        seen.push(name);
        check_value(name, &value)?;
        calls.extend(quote!(.#path(#value)));
    }
    Ok(calls)
}

/// Fails for literals that the method would refuse; the types of other expressions the compiler
/// checks.
fn check_value(name: &str, value: &Expr) -> Result<()> {
    let Expr::Lit(literal) = value else { return Ok(()) };
    let right = match (&literal.lit, name) {
        (syn::Lit::Int(number), "cores") => number.base10_parse::<usize>().is_ok_and(|n| n > 0),
        (syn::Lit::Bool(_), "pinned") => true,
        _ => false,
    };
    let kind = if name == "cores" { "a number from 1 on" } else { "true or false" };
    match right {
        true => Ok(()),
        false => Err(Error::new(value.span(), format!("`{name}` is {kind}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(arguments: &str, function: &str) -> String {
        let tokens = main(arguments.parse().unwrap(), function.parse().unwrap());
        tokens.to_string()
    }

    #[test]
    fn a_function_runs_its_body_in_a_runtime() {
        let function = "#[allow(dead_code)] pub async fn main() -> u8 { work().await }";
        let expected: TokenStream = r#"
            #[allow(dead_code)]
            pub fn main() -> u8 {
                async fn main() -> u8 { work().await }
                match ::megapipe_rt::Runtime::builder().cores(1 + N).pinned(false).build() {
                    ::std::result::Result::Ok(runtime) => runtime.block_on(main()),
                    ::std::result::Result::Err(error) => {
                        ::std::panic!("cannot start the runtime: {error}")
                    }
                }
            }"#
        .parse()
        .unwrap();
        assert_eq!(expanded("cores = 1 + N, pinned = false,", function), expected.to_string());
        assert!(expanded("", "async fn main() {}").contains("Runtime :: builder () . build ()"));
    }

    #[test]
    fn wrong_uses_have_errors_that_say_what_to_do() {
        let good = "async fn main() {}";
        for (arguments, function, text) in [
            ("", "fn main() {}", "write `async` before `fn`"),
            ("", "async fn main(count: usize) {}", "use std::env::args"),
            ("", "async fn main<T>() {}", "remove them"),
            ("threads = 4", good, "for other settings use Runtime::builder"),
            ("cores = 0", good, "`cores` is a number from 1 on"),
            ("cores = \"4\"", good, "`cores` is a number from 1 on"),
            ("pinned = 1", good, "`pinned` is true or false"),
            ("cores = 1, cores = 2", good, "`cores` is set twice"),
            ("cores", good, "expected `=`"),
            ("", "struct Main;", "expected `fn`"),
        ] {
            let found = expanded(arguments, function);
            assert!(found.contains("compile_error"), "{function}: {found}");
            assert!(found.contains(text), "{function}: {found}");
            assert!(found.ends_with("fn main () { }"), "{found}");
        }
    }
}
