/* The life of KV tickets: NT requests at a time between a source P and a reader D, over a link of one
 * control stream and R data connections (ranks), with prefixes that the prompts share.
 *
 * A prompt is two chunks of one block. With PREFIX the first is the same for all: on P a later ticket
 * shares the block that an earlier one computed, on D a fetch does not read what it holds.
 * A read of one rank goes posted(1) -> sampled on P(2) -> landed on D(3), or failed(4).
 * A stream that is cut loses what is in flight, and each end notices for itself, later.
 *
 * Every transition is one function of worker/kvx, named behind @ as FILE:FUNCTION (`check` looks
 * whether they exist), or @N: the dispatcher, @engine, @world: what neither end does.
 *
 * Faults and neighbours are counted, so the graph has no cycles: "every request ends" and "no block is
 * lost" are assertions on the states where nothing can move any more (Quiet). A rule is broken with
 * -DX_...; `check` lists them. Ticket numbers stand for (boot, generation) and are never reused. */
#ifndef NT
#define NT 2
#endif
#ifndef R
#define R 1
#endif
#ifndef F
#define F 1             /* faults */
#endif
#ifndef PB
#define PB 3            /* blocks of P */
#endif
#ifndef DB
#define DB 3            /* blocks of D */
#endif
#ifndef BG
#define BG 1            /* times that a neighbour takes a free block, on each side */
#endif
#define NONE 99
#define JUNK 77
#define TAG(t, c) (1 + 2 * (t) + (c))
#define LAST(t) ((t) * R + R - 1)   /* R is at most 2 */
#define QUIET(t) (rs[(t)*R] == 0 && rs[LAST(t)] == 0)
#ifdef X_ANY_RANK
#define ALL(t) (got[(t)*R] == 2 || got[LAST(t)] == 2)
#else
#define ALL(t) (got[(t)*R] == 2 && got[LAST(t)] == 2)
#endif
#ifdef X_D_KEEP_RANK
#define FENCED (R - 1)
#else
#define FENCED R
#endif

mtype = { Claim, Release, Chunk, Gone, Revoke };
mtype = { none_, held, claimed };
mtype = { idle, linking, claiming, reading, drain, decode, over };

/* the link */
chan dp = [8] of { mtype, byte };
chan pd = [12] of { mtype, byte, byte };
bit p_up, d_up, cut, broken;   /* broken: the data connection of the last rank */
byte epoch, lboot, pq[R], dq[R];

/* P */
byte pboot = 1, pcache = NONE;
mtype pt[NT] = none_;
bit offered[NT], stopped[NT], pcancel[NT];
byte rdy[NT], tboot[NT], pb[2 * NT], tag[2 * NT];
byte pref[PB], content[PB];

/* D */
byte dcache = NONE;
mtype dst[NT] = idle;
bit handed[NT], dcancel[NT], bad[NT], trusted[DB];
byte av[NT], from[NT], db[2 * NT], dref[DB], downer[DB];
byte rs[NT * R], rep[NT * R], got[NT * R], rval[NT * R];

byte faults = F, pneighbours = BG, dneighbours = BG;

inline flush() { do :: dp?_,_ :: empty(dp) -> break od; do :: pd?_,_,_ :: empty(pd) -> break od }
inline to_p(m, t) { if :: d_up && !cut -> assert(nfull(dp)); dp!m,t :: else fi }
inline to_d(m, t, n) { if :: p_up && !cut -> assert(nfull(pd)); pd!m,t,n :: else fi }
inline cut_link() { cut = 1; flush() }

/* ---- P ------------------------------------------------------------------------------------------- */

inline p_release(t) {
  pt[t] = none_; stopped[t] = 1; pref[pb[2*t]]--; pref[pb[2*t+1]]--;
#ifdef X_SHARED_FREE            /* a block is free although another ticket shares it */
  pref[pb[2*t]] = 0
#endif
}
inline p_lose(i) {              /* the ends first, all of them; then the blocks (9) */
  i = 0; do :: i < R -> pq[i] = 0; i++ :: else -> break od;
#ifdef X_P_KEEP_RANK
  pq[R-1] = epoch;
#endif
  p_up = 0; cut_link();
  i = 0; do :: i < NT -> if :: pt[i] == claimed -> p_release(i) :: else fi; i++ :: else -> break od; i = 0
}
inline p_take(b, i) {           /* a free block of P */
  b = NONE; i = 0;
  do :: i < PB -> if :: pref[i] == 0 && b == NONE -> b = i :: else fi; i++ :: else -> break od; i = 0;
  if :: b != NONE -> pref[b] = 1; content[b] = JUNK; if :: b == pcache -> pcache = NONE :: else fi :: else fi
}
inline p_revoke(t) {
  if :: pt[t] == held -> p_release(t)
     :: pt[t] == claimed ->
#ifdef X_FREE_CLAIMED
        p_release(t)
#else
        stopped[t] = 1;
#ifndef X_NO_REVOKE
        to_d(Revoke, t, 0)
#endif
#endif
     :: else fi }

proctype Ticket(byte t) { byte i;   /* one ticket in P's engine */
end: do
  :: atomic { !offered[t] -> offered[t] = 1; tboot[t] = pboot;            /* @source.c:pd_source_offer */
#ifdef PREFIX
       if :: pcache != NONE -> pb[2*t] = pcache; pref[pcache]++; rdy[t] = 1; tag[2*t] = content[pcache]
          :: pcache == NONE -> p_take(pb[2*t], i); tag[2*t] = TAG(t, 0) fi;
#else
       p_take(pb[2*t], i); tag[2*t] = TAG(t, 0);
#endif
       if :: pb[2*t] != NONE -> p_take(pb[2*t+1], i) :: else -> pb[2*t+1] = NONE fi;
       tag[2*t+1] = TAG(t, 1);
       if :: pb[2*t+1] != NONE -> pt[t] = held
          :: else -> if :: pb[2*t] != NONE -> pref[pb[2*t]]-- :: else fi; rdy[t] = 0; stopped[t] = 1; dst[t] = over fi }
  :: atomic { pt[t] != none_ && !stopped[t] && rdy[t] < 2 ->              /* @source.c:pd_source_ready */
       content[pb[2*t+rdy[t]]] = tag[2*t+rdy[t]];
#ifdef PREFIX
       if :: rdy[t] == 0 && pcache == NONE -> pcache = pb[2*t] :: else fi;
#endif
       rdy[t]++; if :: pt[t] == claimed -> to_d(Chunk, t, rdy[t]) :: else fi }
  :: atomic { pcancel[t] -> pcancel[t] = 0; p_revoke(t) }                 /* @source.c:pd_source_revoke */
  :: atomic { faults > 0 && pt[t] != none_ && !stopped[t] && rdy[t] < 2 -> /* @source.c:pd_source_revoke */
       faults--; p_revoke(t); if :: !handed[t] -> dst[t] = over :: else fi }
  /* N hands the ticket over, or leaves the attempt: then both are told (2) */
  :: atomic { pt[t] == held && !handed[t] && dst[t] == idle -> handed[t] = 1 }     /* @N */
  :: atomic { faults > 0 && dst[t] != over && pt[t] != none_ && !stopped[t] ->     /* @N: a client leaves */
       faults--;
#ifndef X_NO_CANCEL
       pcancel[t] = 1;
#endif
       dcancel[t] = handed[t]; if :: !handed[t] -> dst[t] = over :: else fi }
  od }

proctype Source() { byte t, i;
end: do
  :: atomic { dp?Claim,t ->                                               /* @source.c:on_claim */
       if :: pt[t] == held && tboot[t] == pboot -> pt[t] = claimed;
#ifdef X_NOT_CUMULATIVE
             to_d(Chunk, t, 0)
#else
             to_d(Chunk, t, rdy[t])
#endif
#ifdef X_GENERATION             /* a ticket names a place, whoever has it now */
          :: pt[t] == none_ -> to_d(Chunk, t, 2)
          :: pt[t] == claimed -> to_d(Gone, t, 0)
#else
          :: else -> to_d(Gone, t, 0)
#endif
          fi; t = 0 }
  :: atomic { dp?Release,t -> if :: pt[t] == claimed -> p_release(t) :: else fi; t = 0 } /* @source.c:on_release */
  :: atomic { p_up && cut -> p_lose(i) }                                  /* @source.c:pd_source_link_down */
  :: atomic { p_up && broken -> p_lose(i) }                               /* @source.c:pd_source_link_fail */
  :: atomic { (dst[0] == linking || dst[NT-1] == linking) && !d_up ->     /* @source.c:supersede */
#ifndef X_NO_SUPERSEDE
       if :: p_up -> p_lose(i) :: else fi;
#endif
       flush(); cut = 0; broken = 0; epoch++; lboot = pboot; p_up = 1; d_up = 1;
       i = 0; do :: i < R -> pq[i] = epoch; dq[i] = epoch; i++ :: else -> break od; i = 0 }
  od }

/* ---- D ------------------------------------------------------------------------------------------- */

inline d_take(b, i) {
  b = NONE; i = 0;
  do :: i < DB -> if :: dref[i] == 0 && b == NONE -> b = i :: else fi; i++ :: else -> break od; i = 0;
  if :: b != NONE -> dref[b] = 1; trusted[b] = 0; if :: b == dcache -> dcache = NONE :: else fi :: else fi }
inline d_close(t) {             /* the destination is the engine's again, and N hears of it (2) */
  if :: from[t] == 0 -> downer[db[2*t]] = 0 :: else fi;
  downer[db[2*t+1]] = 0; dref[db[2*t]]--; dref[db[2*t+1]]--; dst[t] = over; dcancel[t] = 0;
#ifndef X_NO_CANCEL
  if :: pt[t] != none_ -> pcancel[t] = 1 :: else fi
#endif
}
inline d_leave(t) {             /* drain, then release, then free (8) */
  if :: dst[t] == linking -> d_close(t)
     :: dst[t] == claiming ->
#ifndef X_NO_RELEASE
        to_p(Release, t);
#endif
        d_close(t)
     :: dst[t] == reading ->
#ifdef X_NO_DRAIN
        to_p(Release, t); d_close(t)
#else
        if :: QUIET(t) -> to_p(Release, t); d_close(t) :: else -> dst[t] = drain fi
#endif
     :: else fi }
inline d_lose() {               /* the ends first, all of them; then the fetches (8, 9) */
  d_up = 0; k = 0;
  do :: k < FENCED -> dq[k] = 0; i = 0; do :: i < NT -> rs[i*R+k] = 0; i++ :: else -> break od; k++
     :: else -> break od; k = 0; cut_link();
  i = 0; do :: i < NT -> if :: dst[i] == claiming || dst[i] == reading || dst[i] == drain -> d_close(i)
                            :: else fi; i++ :: else -> break od; i = 0 }
inline d_finish(t) {            /* all ranks have all of it: checked, trusted, released, cached (15, 20) */
#ifdef SHM
#ifndef X_WORDS
  if :: (from[t] == 0 && content[pb[2*t]] != tag[2*t]) || content[pb[2*t+1]] != tag[2*t+1] -> d_lose()
     :: else ->
#endif
#endif
       assert(!bad[t] && (from[t] == 0 || trusted[db[2*t]]));
       to_p(Release, t); dst[t] = decode; trusted[db[2*t]] = 1;
       if :: from[t] == 0 -> downer[db[2*t]] = 0 :: else fi; downer[db[2*t+1]] = 0;
#ifdef PREFIX
       if :: dcache == NONE -> dcache = db[2*t] :: else fi
#endif
#ifdef SHM
#ifndef X_WORDS
  fi
#endif
#endif
}

proctype Reader() { byte t, v, i, k; mtype m;
end: do
  :: atomic { d_up && cut -> d_lose() }                                   /* @reader_link.c:pd_reader_link_down */
  :: atomic { d_up && broken -> d_lose() }                                /* @reader_link.c:pd_reader_link_fail */
  :: atomic { pd?m,t,v ->                                                 /* @reader.c:pd_fetch_message */
       if :: m == Chunk && (dst[t] == claiming || dst[t] == reading) -> dst[t] = reading;
             if :: v > av[t] -> av[t] = v :: else fi
          :: m == Gone && dst[t] == claiming -> d_close(t)
          :: m == Revoke && dst[t] == reading -> d_leave(t)
          :: else fi; m = 0; t = 0; v = 0 }
  od }

proctype Fetch(byte t) { byte i, k;
end: do
  :: atomic { handed[t] && dst[t] == idle ->                              /* @reader.c:pd_reader_fetch */
#ifdef PREFIX
       if :: dcache != NONE -> db[2*t] = dcache; dref[dcache]++; from[t] = 1
          :: dcache == NONE -> d_take(db[2*t], i) fi;
#else
       d_take(db[2*t], i);
#endif
       if :: db[2*t] != NONE -> d_take(db[2*t+1], i) :: else -> db[2*t+1] = NONE fi;
       if :: db[2*t+1] != NONE -> dst[t] = linking; downer[db[2*t+1]] = t + 1;
             if :: from[t] == 0 -> downer[db[2*t]] = t + 1 :: else fi;
#ifdef X_CACHE_EARLY
             if :: dcache == NONE -> dcache = db[2*t] :: else fi;
#endif
             k = 0; do :: k < R -> got[t*R+k] = from[t]; k++ :: else -> break od; k = 0
          :: else -> if :: db[2*t] != NONE -> dref[db[2*t]]-- :: else fi; from[t] = 0; dst[t] = over;
             pcancel[t] = (pt[t] != none_) fi }
  :: atomic { dst[t] == linking && d_up ->                                /* @reader.c:pd_fetch_linked */
       if
#ifndef X_GENERATION
       :: lboot != tboot[t] -> d_close(t)
#endif
       :: else -> to_p(Claim, t); dst[t] = claiming fi }
  :: atomic { dcancel[t] && dst[t] != idle -> dcancel[t] = 0; d_leave(t) } /* @reader.c:pd_reader_cancel */
  :: atomic { dst[t] == reading && av[t] == 2 && ALL(t) -> d_finish(t) }  /* @reader.c:finish */
  :: atomic { dst[t] == drain && QUIET(t) ->                              /* @reader.c:release_and_close */
       to_p(Release, t); d_close(t) }
  :: atomic { dst[t] == decode -> dref[db[2*t]]--; dref[db[2*t+1]]--; dst[t] = over; dcancel[t] = 0 } /* @engine */
  od }

/* ---- one rank's reads of one ticket -------------------------------------------------------------- */

#define I (t * R + r)
proctype Rank(byte t, r) { byte i, k;
end: do
  :: atomic { dst[t] == reading && rs[I] == 0 && got[I] < av[t] && d_up && dq[r] == epoch -> /* @reader.c:pd_link_pump */
       rs[I] = 1; rep[I] = epoch }
#ifdef SHM
  :: atomic { rs[I] == 1 ->                                               /* @world */
#else
  :: atomic { rs[I] == 1 && pq[r] == rep[I] && !(broken && r == R-1) ->   /* @world */
#endif
       rval[I] = content[pb[2*t+got[I]]]; rs[I] = 2 }
#ifndef SHM
  :: atomic { rs[I] == 1 && pq[r] != rep[I] -> rs[I] = 4 }                /* @world */
#endif
  :: atomic { rs[I] == 2 && dq[r] == rep[I] ->                            /* @world */
       assert(downer[db[2*t+got[I]]] == t + 1); rs[I] = 3 }               /* no late byte */
  :: atomic { rs[I] == 3 && (dst[t] == reading || dst[t] == drain) ->     /* @reader.c:pd_reader_landed */
       if :: rval[I] != tag[2*t+got[I]] -> bad[t] = 1 :: else fi; got[I]++; rs[I] = 0; rval[I] = 0 }
  :: atomic { rs[I] == 4 -> rs[I] = 0; if :: d_up -> d_lose() :: else fi } /* @reader_link.c:pd_link_fail */
  od }

/* ---- the world ----------------------------------------------------------------------------------- */

proctype World() { byte i;
end: do
  :: faults > 0 -> faults = 0                                             /* no more of them */
  :: atomic { faults > 0 && p_up && d_up && !cut -> faults--; cut_link() } /* @world */
  :: atomic { faults > 0 && p_up && d_up && !broken -> faults--; broken = 1 } /* @world */
  :: atomic { faults > 0 -> faults--;                                     /* @source.c:pd_source_forget_owner */
       i = 0; do :: i < NT -> if :: pt[i] == held -> p_release(i); if :: !handed[i] -> dst[i] = over :: else fi
                                 :: else fi; i++ :: else -> break od; i = 0 }
  :: atomic { faults > 0 -> faults--; pboot++; cut_link(); p_up = 0; pcache = NONE; /* @world */
       i = 0; do :: i < R -> pq[i] = 0; i++ :: else -> break od;
       i = 0; do :: i < NT -> pt[i] = none_; stopped[i] = offered[i]; pcancel[i] = 0;
                              if :: !handed[i] && offered[i] -> dst[i] = over :: else fi; i++ :: else -> break od;
       i = 0; do :: i < PB -> pref[i] = 0; content[i] = JUNK; i++ :: else -> break od; i = 0 }
  :: atomic { faults > 0 -> faults--; cut_link(); d_up = 0; dcache = NONE; /* @world */
       i = 0; do :: i < R -> dq[i] = 0; i++ :: else -> break od;
       i = 0; do :: i < NT * R -> rs[i] = 0; i++ :: else -> break od;
       i = 0; do :: i < NT -> if :: handed[i] -> dst[i] = over; dcancel[i] = 0; pcancel[i] = (pt[i] != none_)
                                 :: else fi; i++ :: else -> break od;
       i = 0; do :: i < DB -> dref[i] = 0; downer[i] = 0; i++ :: else -> break od; i = 0 }
  od }

proctype Neighbours() { byte i;
end: do
  :: atomic { pneighbours > 0 ->                                          /* @pool.c:pd_pool_recycled */
       pneighbours--; i = 0;
       do :: i < PB -> if :: pref[i] == 0 -> content[i] = JUNK; if :: i == pcache -> pcache = NONE :: else fi
                          :: else fi; i++ :: else -> break od; i = 0 }
  :: atomic { dneighbours > 0 ->                                          /* @engine */
       dneighbours--; i = 0;
       do :: i < DB -> if :: dref[i] == 0 && dcache == i -> dcache = NONE :: else fi; i++ :: else -> break od; i = 0 }
  od }

proctype Quiet() { byte i;
  timeout -> atomic {
    i = 0; do :: i < NT -> assert(pt[i] == none_); assert(dst[i] == over); i++ :: else -> break od;
    i = 0; do :: i < NT * R -> assert(rs[i] == 0); i++ :: else -> break od;
    i = 0; do :: i < PB -> assert(pref[i] == 0); i++ :: else -> break od;
    i = 0; do :: i < DB -> assert(dref[i] == 0 && downer[i] == 0); i++ :: else -> break od } }

init { byte i, k; atomic {
  run Source(); run Reader(); run World(); run Neighbours(); run Quiet();
  i = 0; do :: i < NT -> run Ticket(i); run Fetch(i);
               k = 0; do :: k < R -> run Rank(i, k); k++ :: else -> break od; i++ :: else -> break od } }
