//! Tests the status page in a real browser: its content, its refresh, and its message when the plugin has stopped.

use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::harness::Test;

use crate::world::run;

pub(crate) fn tests() -> Vec<Test> {
    nvc_testkit::tests![&[Root, Command("chromium")]; the_page_shows_current_state]
}

/// Drives the browser over its debugging pipe: descriptors 3 and 4, messages that end with NUL.
const DRIVER: &str = r#"
import json, os, subprocess, sys, time
to_browser, from_us = os.pipe()
to_us, from_browser = os.pipe()
def descriptors():
    for number, wanted in ((to_browser, 23), (from_browser, 24)):
        os.dup2(number, wanted)
    os.dup2(23, 3)
    os.dup2(24, 4)
browser = subprocess.Popen(['chromium', '--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage',
    '--no-first-run', '--user-data-dir=/tmp/browser', '--remote-debugging-pipe', 'about:blank'],
    preexec_fn=descriptors, close_fds=False, stdout=subprocess.DEVNULL, stderr=open('/tmp/browser.log', 'w'))
os.close(to_browser)
os.close(from_browser)
rest, number, session = b'', 0, None
def call(method, **parameters):
    global rest, number
    number += 1
    message = {'id': number, 'method': method, 'params': parameters}
    if session:
        message['sessionId'] = session
    os.write(from_us, json.dumps(message).encode() + b'\0')
    while True:
        while b'\0' not in rest:
            more = os.read(to_us, 65536)
            if not more:
                sys.exit('the browser ended: ' + open('/tmp/browser.log').read()[-2000:])
            rest += more
        text, rest = rest.split(b'\0', 1)
        answer = json.loads(text)
        if answer.get('method') in ('Runtime.exceptionThrown', 'Log.entryAdded'):
            print('browser:', json.dumps(answer['params'])[:500], file=sys.stderr)
        if answer.get('id') == number:
            if 'error' in answer:
                sys.exit('%s: %s' % (method, answer['error']))
            return answer['result']
target = call('Target.createTarget', url='about:blank')['targetId']
session = call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
call('Runtime.enable')
call('Log.enable')
call('Page.navigate', url='http://localhost:3476/')
def value(expression):
    return call('Runtime.evaluate', expression=expression, returnByValue=True)['result'].get('value')
def becomes(expression, seconds=20):
    end = time.time() + seconds
    while not value(expression):
        if time.time() > end:
            sys.exit('never true: %s\n%s' % (expression, value('document.body.innerText')))
        time.sleep(.1)
def readings(*lines):
    open('/etc/nvidia-sim/readings', 'w').write('\n'.join(lines) + '\n')
text = 'document.body.innerText.includes(%s)'
gpu = 'document.querySelectorAll("article")[%d]'
width = gpu + '.querySelector("[aria-label=Utilization] div").style.width'

becomes('document.querySelectorAll("article").length == 2')
for part in ('driver 570.124.06, CUDA 12.8', 'GPU 0: NVIDIA L4 (simulated)', 'GPU-51a2d1c0-64a7-4f6e-8d3b-0c9c5e2f7a10',
             '12 %', '1.0 GiB / 24.0 GiB', 'MIG 0 3g.40gb', '41 °C', '62 / 300 W'):
    becomes(text % json.dumps(part))
assert value(width % 0) == '12%', value(width % 0)

refreshed = value('document.body.dataset.refreshed')
readings('busy.0=87', 'used.0=12884901888', 'processes.1=1:104857600', 'process.1=/opt/<b>app</b>')
becomes(text % json.dumps('87 %'))
assert value(width % 0) == '87%' and value(width % 1) == '12%'
becomes(text % json.dumps('12.0 GiB / 24.0 GiB'))
becomes(text % json.dumps('/opt/<b>app</b>'))
assert value('document.querySelector("article b")') is None
becomes(text % json.dumps('(host)'))
becomes('document.body.dataset.refreshed > %s + 1' % refreshed)

readings('temperature.0=!15')
becomes(text % json.dumps('nvml: GPU is lost'))
becomes(text % json.dumps('GPU 1: NVIDIA H100 PCIe (simulated)'))
readings('busy=33')
becomes(text % json.dumps('33 %'))

os.kill(int(sys.argv[1]), 15)
becomes(text % json.dumps('nvidia-docker-plugin does not answer'))
becomes('document.querySelectorAll("article.old").length == 2')
print('stopped', flush=True)
sys.stdin.readline()
becomes('document.querySelectorAll("article.old").length == 0 && document.querySelectorAll("article").length == 2')
becomes('document.getElementById("notice").textContent == ""')
browser.kill()
print('page ok')
"#;

fn the_page_shows_current_state() {
    let out = run(&format!(
        r#"
        start_plugin
        cat > /tmp/driver.py <<'END_OF_DRIVER'
{DRIVER}
END_OF_DRIVER
        mkfifo /tmp/go
        exec 9<>/tmp/go
        timeout 120 python3 /tmp/driver.py $plugin_pid < /tmp/go > /tmp/page &
        browser=$!
        until_true 100 grep -q stopped /tmp/page || {{ wait $browser; exit 1; }}
        start_plugin
        echo >&9
        wait $browser
        cat /tmp/page
        "#
    ));
    assert!(out.contains("page ok"), "{out}");
}
