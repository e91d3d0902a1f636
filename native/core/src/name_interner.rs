//! Interned names of modes, regions and tags. A name is dropped with the last lobby that uses it.

use hashbrown::HashTable;

use crate::keyed_hash::TableSeed;

struct Symbol {
    bytes: Box<[u8]>,
    uses: u32,
}

pub(crate) struct NameInterner {
    table: HashTable<u32>,
    symbols: Vec<Symbol>,
    vacant: Vec<u32>,
}

impl NameInterner {
    pub(crate) fn new() -> NameInterner {
        NameInterner { table: HashTable::new(), symbols: Vec::new(), vacant: Vec::new() }
    }

    pub(crate) fn find(&self, seed: &TableSeed, bytes: &[u8]) -> Option<u32> {
        self.table.find(seed.bytes(bytes), |number| *self.symbols[*number as usize].bytes == *bytes).copied()
    }

    pub(crate) fn acquire(&mut self, seed: &TableSeed, bytes: &[u8]) -> u32 {
        if let Some(number) = self.find(seed, bytes) {
            self.symbols[number as usize].uses += 1;
            return number;
        }
        let symbol = Symbol { bytes: bytes.into(), uses: 1 };
        let number = match self.vacant.pop() {
            Some(number) => {
                self.symbols[number as usize] = symbol;
                number
            }
            None => {
                self.symbols.push(symbol);
                self.symbols.len() as u32 - 1
            }
        };
        let symbols = &self.symbols;
        let hash = |number: &u32| seed.bytes(&symbols[*number as usize].bytes);
        self.table.insert_unique(hash(&number), number, hash);
        number
    }

    pub(crate) fn release(&mut self, seed: &TableSeed, number: u32) {
        let symbol = &mut self.symbols[number as usize];
        symbol.uses -= 1;
        if symbol.uses > 0 {
            return;
        }
        if let Ok(entry) = self.table.find_entry(seed.bytes(&symbol.bytes), |candidate| *candidate == number) {
            entry.remove();
        }
        symbol.bytes = Box::default();
        self.vacant.push(number);
    }

    pub(crate) fn bytes(&self, number: u32) -> &[u8] {
        &self.symbols[number as usize].bytes
    }

    /// Returns the name of a mode or region. Use `bytes` for a tag, because an encoded tag is not text.
    pub(crate) fn text(&self, number: u32) -> &str {
        core::str::from_utf8(self.bytes(number)).unwrap_or_default()
    }
}

/// Replaces `buffer` with the name length, name and value of a tag.
pub(crate) fn tag_symbol(buffer: &mut Vec<u8>, name: &str, value: &str) {
    // The length keeps `(ab, c)` and `(a, bc)` different.
    buffer.clear();
    buffer.extend_from_slice(&(name.len() as u32).to_le_bytes());
    buffer.extend_from_slice(name.as_bytes());
    buffer.extend_from_slice(value.as_bytes());
}

pub(crate) fn split_tag_symbol(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_keeps_its_number_while_in_use() {
        let seed = TableSeed::new(&[1; 32]);
        let mut symbols = NameInterner::new();
        let duel = symbols.acquire(&seed, b"duel");
        assert_eq!(symbols.acquire(&seed, b"duel"), duel);
        assert_ne!(symbols.acquire(&seed, b"arena"), duel);
        symbols.release(&seed, duel);
        assert_eq!(symbols.find(&seed, b"duel"), Some(duel));
        symbols.release(&seed, duel);
        assert_eq!(symbols.find(&seed, b"duel"), None);
        assert_eq!(symbols.acquire(&seed, b"royale"), duel, "the number is used again");
    }

    #[test]
    fn concatenated_tags_stay_distinct() {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        tag_symbol(&mut first, "ab", "c");
        tag_symbol(&mut second, "a", "bc");
        assert_ne!(first, second);
        assert_eq!(split_tag_symbol(&first), Some((&b"ab"[..], &b"c"[..])));
    }
}
