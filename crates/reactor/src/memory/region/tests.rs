use super::*;

fn arena() -> Arena {
    Arena::new(1 << 20).unwrap()
}

fn filled(arena: &mut Arena, bytes: &[u8]) -> Places {
    let places = arena.take(bytes.len() as u32).unwrap();
    let mut at = 0;
    for span in places.iter() {
        let end = at + span.len as usize;
        arena.bytes_mut(span).copy_from_slice(&bytes[at..end]);
        at = end;
    }
    places
}

fn store(region: &Region, at: u64, arena: &mut Arena, bytes: &[u8]) {
    let places = filled(arena, bytes);
    region.copy_in(at, arena, &places);
    arena.give(&places);
}

fn content(arena: &Arena, places: &Places) -> Vec<u8> {
    places.iter().flat_map(|span| arena.bytes(span).to_vec()).collect()
}

fn read(region: &Region, at: u64, len: u32) -> Vec<u8> {
    let mut arena = arena();
    let places = arena.take(len).unwrap();
    region.copy_out(at, &mut arena, &places);
    content(&arena, &places)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| ((n * 7) >> 2) as u8 | 1).collect()
}

#[test]
fn what_is_copied_in_comes_out() {
    let region = Region::map(1 << 20).unwrap();
    let mut arena = arena();
    let bytes = pattern(150_000);
    let from = filled(&mut arena, &bytes);
    region.copy_in(12_345, &arena, &from);
    assert_eq!(read(&region, 12_345, 150_000), bytes);
    assert_eq!(read(&region, 12_344, 1), [0]);
    assert_eq!(region.compare(12_345, &arena, &from), None);
    assert_eq!(region.compare(12_344, &arena, &from), Some(0));
}

#[test]
fn a_copy_is_made_of_bytes_of_the_arena_and_of_regions_lent_or_not() {
    let region = Region::map(1 << 20).unwrap();
    let mut arena = arena();
    let bytes = pattern(9000);
    let mut places = filled(&mut arena, &bytes);
    region.copy_in(100, &arena, &places);
    let lent = places.iter().next().unwrap();
    arena.lend(lent, crate::memory::Loan::Write);
    places.push(region.span(100, 9000).unwrap());
    assert_eq!(arena.to_vec(&places), [&bytes[..], &bytes[..]].concat());
    arena.unlend(lent, crate::memory::Loan::Write);
    assert_eq!(arena.to_vec(&Places::EMPTY), []);
    let twice = pattern(18_000);
    arena.copy_in(&twice, &places);
    assert_eq!(arena.to_vec(&places), twice);
}

#[test]
fn compare_finds_the_first_difference_in_any_span() {
    let region = Region::map(1 << 20).unwrap();
    let mut arena = arena();
    let bytes = pattern(150_000);
    store(&region, 0, &mut arena, &bytes);
    for at in [0, 4095, 4096, 65_535, 65_536, 149_999] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        changed[149_999] ^= 2;
        let with = filled(&mut arena, &changed);
        assert_eq!(region.compare(0, &arena, &with), Some(at as u32));
        arena.give(&with);
    }
}

#[test]
fn or_sets_bits() {
    let region = Region::map(1 << 20).unwrap();
    let mut arena = arena();
    let operand = filled(&mut arena, &[0x0f; 70_000]);
    store(&region, 0, &mut arena, &[0x31; 70_000]);
    region.or_in(0, &arena, &operand);
    assert_eq!(read(&region, 0, 70_000), [0x3f; 70_000]);
}

#[test]
fn one_region_copies_to_another() {
    let (a, b) = (Region::map(1 << 20).unwrap(), Region::map(1 << 20).unwrap());
    let mut arena = arena();
    let bytes = pattern(9000);
    store(&a, 100, &mut arena, &bytes);
    b.copy_in(50, &arena, &Places::one(a.span(100, 9000).unwrap()));
    assert_eq!(read(&b, 50, 9000), bytes);
}

#[test]
fn released_and_zeroed_ranges_read_as_zeros() {
    let region = Region::map(1 << 20).unwrap();
    let mut arena = arena();
    let ones = filled(&mut arena, &[0xff; 65_536]);
    region.copy_in(0, &arena, &ones);
    region.release(1000, 40_000);
    region.fill_zero(50_000, 100);
    let bytes = read(&region, 0, 65_536);
    let zero = |n: &usize| (1000..41_000).contains(n) || (50_000..50_100).contains(n);
    assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == if zero(&n) { 0 } else { 0xff }));
}

#[test]
fn extents_distinguish_written_pages_from_others() {
    let region = Region::map(64 * PAGE_BYTES).unwrap();
    let entire = (false, 64 * PAGE_BYTES);
    if region.extent(0) != entire {
        // This system hides its page maps: everything counts as allocated.
        assert_eq!(region.extent(0), (true, 64 * PAGE_BYTES));
        return;
    }
    let mut arena = arena();
    store(&region, 10 * PAGE_BYTES, &mut arena, &[1; 8192]);
    assert!(region.extent(10 * PAGE_BYTES + 1).0);
    assert!(region.extent(11 * PAGE_BYTES).0);
    read(&region, 20 * PAGE_BYTES, 4096);
    region.release(0, 64 * PAGE_BYTES);
    assert_eq!(region.extent(0), entire, "reading allocates nothing, and a release gives all back");
    assert_eq!(region.extent(63 * PAGE_BYTES + 4095), (false, 1));
}

/// The value of a line in smaps for the mapping of a region.
fn mapped_kibibytes(region: &Region, what: &str) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let at = region.base() as u64;
    let is_here = |line: &&str| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text| u64::from_str_radix(text, 16).ok();
        range.and_then(|(from, to)| Some(hex(from)? <= at && at < hex(to)?)).unwrap_or(false)
    };
    let mut lines = maps.lines().skip_while(|line| !is_here(line)).skip(1);
    let line = lines.find_map(|line| line.strip_prefix(what)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Whether this machine gives huge pages and shows its page maps; prints why not.
fn has_huge_pages(region: &Region) -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let setting = setting.unwrap_or_else(|error| error.to_string());
    let is_on = ["[always]", "[madvise]"].iter().any(|on| setting.contains(on));
    let is_shown = region.extent(0) == (false, region.len());
    if !is_on || !is_shown {
        eprintln!("not tested: huge pages: {}, page maps are shown: {is_shown}", setting.trim());
    }
    is_on && is_shown
}

#[test]
fn huge_pages_come_and_go_as_extents_say() {
    let region = Region::map_on(4 * HUGE_PAGE_BYTES, Pages::Huge).unwrap();
    assert!((region.base() as u64).is_multiple_of(HUGE_PAGE_BYTES));
    if !has_huge_pages(&region) {
        return;
    }
    let mut arena = arena();
    read(&region, 3 * HUGE_PAGE_BYTES, 4096);
    assert_eq!(region.extent(0), (false, region.len()), "reading allocates nothing");
    store(&region, HUGE_PAGE_BYTES + 5000, &mut arena, &[1; 100]);
    if mapped_kibibytes(&region, "AnonHugePages") == 0 {
        eprintln!("not tested: the machine has no huge page free");
        return;
    }
    assert_eq!(region.extent(0), (false, HUGE_PAGE_BYTES));
    let (is_mapped, len) = region.extent(HUGE_PAGE_BYTES);
    assert!(is_mapped && len >= HUGE_PAGE_BYTES, "all of it is taken");
    // A part of it is released at once; the rest stays.
    region.release(HUGE_PAGE_BYTES + 8192, 65_536);
    assert_eq!(region.extent(HUGE_PAGE_BYTES + 8192), (false, 65_536));
    assert_eq!(read(&region, HUGE_PAGE_BYTES + 5000, 100), [1; 100]);
    region.release(0, region.len());
    assert_eq!(region.extent(0), (false, region.len()));
    assert_eq!(read(&region, HUGE_PAGE_BYTES + 5000, 100), [0; 100]);
}

#[test]
fn small_pages_are_taken_one_by_one_whatever_the_machine_is_set_to() {
    let region = Region::map_on(4 * HUGE_PAGE_BYTES, Pages::Small).unwrap();
    if !has_huge_pages(&region) {
        return;
    }
    store(&region, HUGE_PAGE_BYTES + 4096, &mut arena(), &[1; 100]);
    assert_eq!(region.extent(0), (false, HUGE_PAGE_BYTES + 4096));
    assert_eq!(region.extent(HUGE_PAGE_BYTES + 4096), (true, 4096));
}

#[test]
fn a_region_on_huge_pages_may_end_inside_of_one() {
    let region = Region::map_on(HUGE_PAGE_BYTES + 4097, Pages::Huge).unwrap();
    store(&region, HUGE_PAGE_BYTES + 4000, &mut arena(), &[7; 97]);
    assert_eq!(read(&region, HUGE_PAGE_BYTES + 4000, 97), [7; 97]);
    assert!(Region::map_on(u64::MAX, Pages::Huge).is_err());
    assert!(Region::map_on(isize::MAX as u64 & !4095, Pages::Huge).is_err());
}

#[test]
fn a_span_of_a_dropped_region_resolves_to_nothing() {
    let region = Region::map(8192).unwrap();
    let span = region.span(0, 8192).unwrap();
    assert_eq!(region.span(1, 8192), None);
    let pin = Pin::new(span).unwrap();
    drop(region);
    assert!(Pin::new(span).is_none());
    // Still mapped, as it is pinned.
    // SAFETY: the pin keeps the region mapped.
    assert_eq!(unsafe { pin.address(span).read() }, 0);
    drop(pin);
    let others: Vec<_> = (0..10).map(|_| Region::map(4096).unwrap()).collect();
    assert!(others.iter().all(|other| other.id() != span.buffer));
    assert!(Pin::new(span).is_none());
}

#[test]
fn an_arena_is_private() {
    let mut arena = arena();
    let span = arena.take(1).unwrap().iter().next().unwrap();
    assert!(Pin::new(span).is_none());
}

#[test]
fn impossible_sizes_are_errors() {
    assert!(Region::map(0).is_err());
    assert!(Region::map(u64::MAX).is_err());
    assert!(Region::map(1 << 62).is_err());
}

#[test]
#[should_panic(expected = "outside a region")]
fn a_range_outside_is_refused() {
    Region::map(4096).unwrap().fill_zero(4096, 1);
}
