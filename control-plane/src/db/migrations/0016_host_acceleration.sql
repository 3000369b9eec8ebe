-- Whether a host runs guests with KVM or emulates them (TCG), which separates no tenants. Null until its next heartbeat.
alter table hosts add column accel text check (accel in ('kvm', 'tcg'));
