//! Defines enums whose values have a text in scripts.

/// Defines an enum of words without data, with the text of each.
#[macro_export]
macro_rules! words {
    ($(#[$of:meta])* $name:ident { $($(#[$doc:meta])* $word:ident = $text:literal,)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $word,)+ }

        impl $name {
            /// All values.
            pub const ALL: &[$name] = &[$($name::$word,)+];

            /// Returns the value's text in scripts.
            pub fn text(self) -> &'static str {
                match self { $($name::$word => $text,)+ }
            }

            fn read(text: &str) -> Result<$name, String> {
                let found = $name::ALL.iter().copied().find(|word| word.text() == text);
                found.ok_or_else(|| format!("`{text}` is no {}", stringify!($name)))
            }
        }
    };
}
