# apache with the multi-processing module $MPM: files, a program for each request, many clients.
NEEDS="apache2 curl ab"
CASES="small large cgi keep_alive closes"
QUICK_CASES=small
STOP=WINCH

prepare() {
    mkdir -p www/cgi && random 3000 www/small && random 20000000 www/large
    printf '#!/bin/sh\nprintf "Content-Type: text/plain\\r\\n\\r\\n"; cat www/small\n' > www/cgi/run
    sed -i "s,cat www,cat $PWD/www," www/cgi/run && chmod +x www/cgi/run
    modules=/usr/lib/apache2/modules
    {
        for module in mpm_$MPM authz_core alias cgi mime; do
            echo "LoadModule ${module}_module $modules/mod_$module.so"
        done
        echo "ServerName server
Listen $ADDRESS:$PORT
User daemon
Group daemon
PidFile $PWD/apache.pid
ErrorLog $PWD/errors
DefaultRuntimeDir $PWD
GracefulShutdownTimeout 1
TypesConfig /dev/null
DocumentRoot $PWD/www
ScriptAlias /cgi $PWD/www/cgi"
    } > apache.conf
}

server() { exec $SERVER apache2 -f "$PWD/apache.conf" -D FOREGROUND; }

fetch() { $CLIENT curl -sf -o got "http://$ADDRESS:$PORT/$1" && same got "www/$2"; }
# ab's own time limit is longer than the case's, so that what hangs does so each time.
load() {
    $CLIENT ab -q -s 100 "$@" "http://$ADDRESS:$PORT/small" > report || return
    grep -q "Failed requests: *0$" report
}

small() { for i in $(seq 10); do fetch small small || return; done; }
large() { fetch large large; }
cgi() { for i in $(seq 5); do fetch cgi/run small || return; done; }
keep_alive() { load -k -n 2000 -c 20; }
closes() { load -n 500 -c 10; }
