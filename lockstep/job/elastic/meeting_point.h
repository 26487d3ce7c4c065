// Where the hosts of a job are to meet, as their user names it: text -> Endpoint. Whether hosts can meet there at all
// is found out before anybody waits there. Does not ask a resolver.
#pragma once

#include <string>

#include "lockstep/comm/net/address.h"

namespace lockstep::internal {

// "h1", "h1:29400", "10.0.0.5:29400", "[2001:db8::5]:29400"; the port is 29400 if none is given.
// Error{invalid_argument} says what is wrong with it: no endpoint, an address that no host has, a link-local one
// without an interface, or a port that another host cannot know, if there may be several.
Endpoint parse_meeting_point(const std::string& text, int most_hosts);

}  // namespace lockstep::internal
