import time, subprocess, sys, signal
from pathlib import Path
from bench.machine import Bench
from bench.service import running
from bench.load import *
b=Bench(Path('/work/main/bench/results/work').resolve()); b.binaries
shape = GRPC if sys.argv[1]=='grpc' else HTTP
n = 16384 if shape is GRPC else 49152
with running(b.scratch('g')) as s:
    tk=Tokens.make(s, s.folder/'plan', n)
    p=subprocess.Popen(['perf','record','-o',f'/tmp/perf-{sys.argv[1]}','-F','499','-g','-p',str(s.pid)],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL)
    time.sleep(0.5)
    y0=s.metric('hosting_journal_syncs_total')
    r=ask(b, shape, s.addresses[shape.door], tk.plan, s.pid); print(r)
    print('syncs', s.metric('hosting_journal_syncs_total')-y0)
    p.send_signal(signal.SIGINT); p.wait()
    tk.check_spent()
